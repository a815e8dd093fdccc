use std::cell::Cell;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::two_hosts::{Hosts, Link, Process, endpoint, session};

/// Calls `act` after each `every` messages.
fn each(every: u64, mut act: impl FnMut(u64)) -> impl FnMut(u64) {
    let mut next = every;
    move |arrived| {
        if arrived >= next {
            act(next / every);
            next += every;
        }
    }
}

fn undisturbed(count: u64) {
    let (hosts, endpoint) = (Hosts::new(4096), endpoint());
    let _receiver = hosts.receiver(&["--listen", &endpoint]);
    let _sender = hosts.sender(&["--connect", &endpoint]);
    hosts.carry(count, |_| {});
}

#[test]
fn a_million_messages_arrive_once_and_in_order() {
    undisturbed(1_000_000);
}

#[test]
#[ignore = "takes a minute"]
fn ten_million_messages_arrive_once_and_in_order() {
    undisturbed(10_000_000);
}

#[test]
fn a_killed_receiver_loses_and_duplicates_nothing() {
    let (hosts, endpoint) = (Hosts::new(1024), endpoint());
    let mut receiver = hosts.receiver(&["--listen", &endpoint]);
    let _sender = hosts.sender(&["--connect", &endpoint]);
    let act = each(20_000, |_| {
        receiver.kill();
        receiver = hosts.receiver(&["--listen", &endpoint]);
    });
    hosts.carry(120_000, act);
}

#[test]
fn a_killed_sender_loses_and_duplicates_nothing() {
    let (hosts, endpoint) = (Hosts::new(1024), endpoint());
    let _receiver = hosts.receiver(&["--listen", &endpoint]);
    let mut sender = hosts.sender(&["--connect", &endpoint]);
    let act = each(20_000, |_| {
        sender.kill();
        sender = hosts.sender(&["--connect", &endpoint]);
    });
    hosts.carry(120_000, act);
}

#[test]
fn killing_both_processes_loses_and_duplicates_nothing() {
    let (hosts, endpoint) = (Hosts::new(1024), endpoint());
    let mut receiver = hosts.receiver(&["--listen", &endpoint]);
    let mut sender = hosts.sender(&["--connect", &endpoint]);
    let act = each(20_000, |time| {
        if time % 2 == 0 {
            receiver.kill();
            sender.kill();
        } else {
            sender.kill();
            receiver.kill();
        }
        sender = hosts.sender(&["--connect", &endpoint]);
        receiver = hosts.receiver(&["--listen", &endpoint]);
    });
    hosts.carry(80_000, act);
}

#[test]
fn router_role() {
    let Ok(endpoint) = std::env::var("RINGMEM_ZENOH_ROUTER") else { return };
    let _session = session("router", &[&endpoint], &[]);
    loop {
        thread::park();
    }
}

fn router(endpoint: &str) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    Process::start(command.args(["--exact", "processes::router_role", "--nocapture"]).env("RINGMEM_ZENOH_ROUTER", endpoint))
}

#[test]
fn a_killed_router_loses_and_duplicates_nothing() {
    let (hosts, endpoint) = (Hosts::new(1024), endpoint());
    let mut router_process = router(&endpoint);
    let client = ["--mode", "client", "--connect", &endpoint];
    let (_receiver, _sender) = (hosts.receiver(&client), hosts.sender(&client));
    let act = each(20_000, |_| {
        router_process.kill();
        router_process = router(&endpoint);
    });
    hosts.carry(100_000, act);
}

#[test]
fn link_outages_lose_and_duplicate_nothing() {
    let (hosts, endpoint) = (Hosts::new(1024), endpoint());
    let _receiver = hosts.receiver(&["--listen", &endpoint]);
    let link = Link::to(&endpoint);
    let _sender = hosts.sender(&["--connect", &link.endpoint]);
    let act = each(20_000, |time| {
        if time % 2 == 0 {
            link.cut()
        } else {
            link.pause()
        }
        thread::sleep(Duration::from_secs(3));
        link.open();
    });
    hosts.carry(100_000, act);
}

#[test]
fn a_slow_reader_blocks_the_producer_without_loss() {
    let (hosts, endpoint) = (Hosts::new(64), endpoint());
    let _receiver = hosts.receiver(&["--listen", &endpoint]);
    let _sender = hosts.sender(&["--connect", &endpoint]);
    let slow = Cell::new(0);
    hosts.carry(5_000, |arrived| {
        if arrived >= slow.get() {
            slow.set(arrived + 500);
            thread::sleep(Duration::from_millis(700));
            let ((head, tail), (far_head, far_tail)) = (hosts.source.indices(), hosts.sink.indices());
            assert!(tail - head <= 64 && far_tail - far_head <= 64, "within the rings");
            assert!(tail - far_head <= 128, "the producer is stopped: what is released here is in the ring there");
        }
    });
}

fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split(' ')).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim())) }
}

struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&format!("netns del {}", self.0));
    }
}

/// Makes two network namespaces connected by a pair of interfaces.
fn namespaces() -> Result<[Namespace; 2], String> {
    let names = ["a", "b"].map(|side| format!("rmz{}{side}", std::process::id()));
    let made = names.clone().map(|name| ip(&format!("netns add {name}")).map(|()| Namespace(name)));
    let [a, b] = made;
    let (a, b) = (a?, b?);
    let [from, to] = &names;
    ip(&format!("link add {from} netns {from} type veth peer name {to} netns {to}"))?;
    for (name, address) in [(from, "198.51.100.1/24"), (to, "198.51.100.2/24")] {
        ip(&format!("-n {name} address add {address} dev {name}"))?;
        ip(&format!("-n {name} link set lo up"))?;
        ip(&format!("-n {name} link set {name} up"))?;
    }
    Ok([a, b])
}

fn inside(namespace: &Namespace, command: &Command) -> Process {
    let mut wrapped = Command::new("ip");
    wrapped.args(["netns", "exec", &namespace.0]).arg(command.get_program()).args(command.get_args());
    Process::start(&mut wrapped)
}

#[test]
fn a_downed_interface_loses_and_duplicates_nothing() {
    let [a, b] = match namespaces() {
        Ok(pair) => pair,
        Err(reason) => return println!("not run: no network namespaces here: {reason}"),
    };
    let hosts = Hosts::new(1024);
    let _receiver = inside(&b, &hosts.receive_command(&["--listen", "tcp/198.51.100.2:7447"]));
    let _sender = inside(&a, &hosts.send_command(&["--connect", "tcp/198.51.100.2:7447"]));
    let act = each(20_000, |_| {
        ip(&format!("-n {0} link set {0} down", a.0)).unwrap();
        thread::sleep(Duration::from_secs(3));
        ip(&format!("-n {0} link set {0} up", a.0)).unwrap();
    });
    hosts.carry(60_000, act);
}
