#!/usr/bin/env python3
"""Opens pages of `ringmem view` in a headless Chromium and asserts their elements: check_pages.py RINGMEM FOLDER.

FOLDER has `replay.json`, `simulation.json` and `random.json`; pages and screenshots are written there. Two further snapshots have no trace, and extreme
numbers. The time of a redraw is printed. It decides nothing.
"""
import html
import html.parser
import json
import os
import subprocess
import sys
from pathlib import Path

LIMIT = 180  # seconds; a page takes two
VOID = {"meta", "input", "br", "img", "link"}


class Page(html.parser.HTMLParser):
    """The attributes of body, and the text and the tags within each element that has an id."""

    def __init__(self, source):
        super().__init__()
        self.body, self.text, self.tags, self.within = {}, {}, {}, []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "body":
            self.body = attributes
        for name in filter(None, self.within):
            self.tags.setdefault(name, []).append(tag)
        if tag not in VOID:
            self.within.append(attributes.get("id"))

    def handle_endtag(self, tag):
        if tag not in VOID and self.within:
            self.within.pop()

    def handle_data(self, data):
        for name in filter(None, self.within):
            self.text[name] = self.text.get(name, "") + data

    def count(self, name, tag):
        return self.tags.get(name, []).count(tag)

    def fact(self, name):
        return float(self.body.get(f"data-{name}", "nan"))


def chromium(folder, *arguments):
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder / 'profile'}", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=LIMIT, check=True, text=True).stdout


def open_page(folder, name, part="", dark=False):
    """The page after its script, and a screenshot."""
    address = f"{(folder / name).as_uri()}.html#{part}"
    picture = folder / f"{name}{'-dark' if dark else ''}.png"
    chromium(folder, f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--window-size=1280,900", f"--screenshot={picture}", address)
    assert picture.read_bytes()[:4] == b"\x89PNG" and os.path.getsize(picture) > 20_000, picture
    page = Page(chromium(folder, "--window-size=1280,900", "--dump-dom", address))
    assert page.body.get("data-ready") == "yes", (name, page.body)
    assert "data-broken" not in page.body, "text of the snapshot was executed"
    drawn = page.body.get("data-events-drawn", "no")
    print(f"{name}{'#' + part if part else ''}: {drawn} events drawn in {page.fact('draw-ms')} ms; {picture}")
    return page


def expect(page, **facts):
    for name, value in facts.items():
        assert page.fact(name.replace("_", "-")) == value, (name, value, page.body)


def common(page, snapshot):
    slabs = [slab for pool in snapshot["pools"] for slab in pool["slabs"]]
    events = sum(len(trace["events"]) for trace in snapshot["traces"])
    expect(page, pools=len(snapshot["pools"]), slabs=len(slabs), parts=sum(len(slab["parts"]) for slab in slabs), events=events, events_drawn=events,
           samples=len(snapshot["samples"]))
    assert page.fact("painted") > 10_000, "the timeline is blank"
    assert page.count("pools", "canvas") == len(snapshot["pools"])
    for pool in snapshot["pools"]:
        assert pool["name"] in page.text["pools"], page.text["pools"]


def replayed(folder):
    snapshot = json.loads((folder / "replay.json").read_text())
    page = open_page(folder, "replay")
    common(page, snapshot)
    events = snapshot["traces"][0]["events"]
    kinds = [event["kind"] for event in events]
    expect(page, allocations=kinds.count("alloc"), unfreed=kinds.count("alloc") - kinds.count("free"), leaks=0)
    assert "not freed" in page.text["facts"] and page.count("holders", "tr") > 3, page.text["facts"]


def simulated(folder):
    snapshot = json.loads((folder / "simulation.json").read_text())
    page = open_page(folder, "simulation")
    common(page, snapshot)
    buffers = snapshot["managers"][0]["buffers"]
    expect(page, unfreed=len(buffers), buffers=len(buffers))
    assert page.fact("holders") >= len(buffers), "a holder for each line that creates a field"
    largest = max(buffers, key=lambda buffer: buffer["used_bytes"])
    assert f"{largest['name']} {largest['element']}" in page.text["buffers"], page.text["buffers"]
    open_page(folder, "simulation", "stack=group", dark=True)


def random(folder):
    snapshot = json.loads((folder / "random.json").read_text())
    events = snapshot["traces"][0]["events"]
    blocks = [event for event in events if event["kind"] == "alloc"]
    page = open_page(folder, "random")
    common(page, snapshot)
    expect(page, allocations=len(blocks), leaks=len(snapshot["trackers"][0]["leaks"]), buffers=len(snapshot["managers"][0]["buffers"]), found=len(blocks))
    for text in ("</script><script>document.body.dataset.broken=1</script>", "<img src=x onerror=document.body.dataset.broken=1>"):
        assert text in page.text["leaks"] and text in page.text["buffers"], text
    assert page.count("leaks", "img") == 0 and page.count("leaks", "script") == 0
    assert "12 registered" not in page.text["buffers"] and "9 registered buffers" in page.text["buffers"], page.text["buffers"]
    failed = sum(event["kind"] == "refused" for event in events)
    assert f"{failed} failed allocations" in page.text["legend"], page.text["legend"]

    word = "attention"
    found = [block for block in blocks if any(word in (block[field] or "") for field in ("name", "place", "backtrace"))]
    traced = next(block for block in blocks if block["backtrace"])
    page = open_page(folder, "random", f"search={word}&axis=time&stack=age&block={traced['block']}", dark=True)
    expect(page, found=len(found), events_drawn=len(events))
    assert 0 < len(found) < len(blocks) and f"{len(found):,} of {len(blocks):,} blocks" in page.text["found"], page.text["found"]
    assert "attention.rs:48" in page.text["holders"] and "model.rs" not in page.text["holders"], page.text["holders"]
    selected = page.text["selected"]
    assert f"block {traced['block']} " in selected and "model::forward" in selected and page.count("selected", "pre") == 1, selected


    block = blocks[len(blocks) // 2]
    page = open_page(folder, "random", f"search={block['address'] + block['bytes'] - 1:#x}")
    expect(page, found=1)


def without_trace(folder):
    snapshot = json.loads((folder / "live.json").read_text())
    page = open_page(folder, "live")
    leaks = snapshot["trackers"][0]["leaks"]
    expect(page, events=0, leaks=len(leaks), holders=len({leak["place"] or leak["name"] for leak in leaks}), samples=len(snapshot["samples"]))
    assert "src/model.rs:120:17" in page.text["holders"], page.text["holders"]


def extreme(folder):
    most = 2**64 - 1
    block = {"kind": "alloc", "time_ns": most, "bytes": most, "stream": most, "address": most, "name": "largest"}
    events = [{**block, "block": 0}, {**block, "block": most}, {"kind": "free", "block": 0, "time_ns": most}]
    slab = {"number": most, "address": most, "bytes": most, "parts": [{"offset": most - 1, "bytes": 1, "state": "live"}]}
    figures = {name: most for name in json.loads((folder / "random.json").read_text())["pools"][0]["statistics"]}
    (folder / "extreme.json").write_text(json.dumps({
        "version": 1, "pools": [{"name": "all", "statistics": figures, "slabs": [slab]}], "samples": [{"pool": "all", "time_ns": most, "statistics": figures}],
        "traces": [{"name": "same time", "events": events}, {"name": "none", "events": []}],
    }))
    subprocess.run([sys.argv[1], "view", folder / "extreme.json", "--output", folder / "extreme.html"], check=True)
    for axis in ("event", "time"):
        expect(open_page(folder, "extreme", f"axis={axis}"), events=3, allocations=2, unfreed=1, slabs=1)
    page = open_page(folder, "extreme", "trace=1")
    expect(page, events_drawn=0)
    assert "No live block" in page.text["holders"], page.text["holders"]


def hidden(folder):
    """A page in a frame without size works, and draws when the frame is shown."""
    source = html.escape((folder / "random.html").read_text())
    (folder / "hidden.html").write_text(f"""<!DOCTYPE html><body><iframe style="display:none" srcdoc="{source}"></iframe><script>
      const frame = document.querySelector('iframe'), facts = document.body.dataset;
      frame.contentWindow.addEventListener('error', (event) => (facts.error = event.message));
      frame.onload = () => {{
        const page = frame.contentDocument.body.dataset;
        facts.hiddenReady = page.ready ?? 'no';
        frame.style = 'width:1000px;height:800px';
        (function shown() {{
          if (Number(page.painted) > 10000) facts.ready = 'yes'; else setTimeout(shown, 10);
        }})();
      }};
    </script>""")
    page = Page(chromium(folder, "--window-size=1280,900", "--virtual-time-budget=20000", "--dump-dom", f"{(folder / 'hidden.html').as_uri()}"))
    assert (page.body.get("data-hidden-ready"), page.body.get("data-ready")) == ("yes", "yes"), page.body
    print("hidden: drawn when shown")


def main():
    ringmem, folder = sys.argv[1], Path(sys.argv[2]).resolve()
    whole = json.loads((folder / "random.json").read_text())
    (folder / "live.json").write_text(json.dumps({**whole, "traces": []}))
    for name in ("replay", "simulation", "random", "live"):
        subprocess.run([ringmem, "view", folder / f"{name}.json", "--output", folder / f"{name}.html"], check=True)
    replayed(folder)
    simulated(folder)
    random(folder)
    without_trace(folder)
    extreme(folder)
    hidden(folder)


main()
