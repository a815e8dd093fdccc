#!/usr/bin/env python3
"""Opens pages of `ringmem view` in a headless Chromium and asserts their elements: check_pages.py RINGMEM FOLDER.

FOLDER has `replay.json`, `simulation.json`, `random.json`, `training.pickle`, and `pytorch.pickle` with its figures in `pytorch.json`; pages and screenshots are written there.
Two further snapshots have no trace, and extreme numbers. The time of a redraw is printed. It decides nothing.
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


# What is outside the window, or cut by its own box; what a scroll shows is not.
CUT = """document.body.dataset.cut = [...document.querySelectorAll('body *')].filter((box) => {
  const { width, right } = box.getBoundingClientRect(), hides = ['hidden', 'clip'].includes(getComputedStyle(box).overflowX);
  return width > 0 && (right > innerWidth + 1 || (hides && box.scrollWidth > box.clientWidth + 1));
}).map((box) => box.id || box.className || box.tagName).join(' ');"""


KEY = "for (const key of {}) document.body.dispatchEvent(new KeyboardEvent('keydown', {{ key, bubbles: true }}));"


def open_page(folder, name, part="", dark=False, size=(1280, 900), script=""):
    """The page after its script and another, and a screenshot."""
    source = (folder / f"{name}.html").read_text().replace("</body>", f"<script>{CUT}{script}</script></body>")
    (folder / "opened.html").write_text(source)
    address, window = f"{(folder / 'opened.html').as_uri()}#{part}", f"--window-size={size[0]},{size[1]}"
    picture = folder / f"{name}{'-dark' if dark else ''}{'' if size[0] == 1280 else f'-{size[0]}'}.png"
    chromium(folder, f"--blink-settings=preferredColorScheme={0 if dark else 1}", window, f"--screenshot={picture}", address)
    assert picture.read_bytes()[:4] == b"\x89PNG" and os.path.getsize(picture) > 20_000, picture
    page = Page(chromium(folder, window, "--dump-dom", address))
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
    samples = {sample["pool"]: 0 for sample in snapshot["samples"]}
    for sample in snapshot["samples"]:
        samples[sample["pool"]] += 1
    # The curve is that of the first pool with samples, and ends at the figures of the pool itself.
    first = next(iter(samples))
    shown = samples[first] + sum(pool["name"] == first and pool["time_ns"] is not None for pool in snapshot["pools"])
    expect(page, pools=len(snapshot["pools"]), slabs=len(slabs), parts=sum(len(slab["parts"]) for slab in slabs), events=events, events_drawn=events,
           samples=shown)
    assert page.fact("painted") > 10_000, "the timeline is blank"
    assert page.count("pools", "canvas") == len(snapshot["pools"])
    for pool in snapshot["pools"]:
        assert pool["name"] in page.text["pools"], page.text["pools"]
    sampled = {sample["pool"] for sample in snapshot["samples"]}
    shown = next(pool for pool in snapshot["pools"] if f"pool {pool['name']}" == page.text["curve-name"].removeprefix("Fragmentation of "))
    assert shown["name"] in sampled, page.text["curve-name"]
    assert page.text["curve-end"] == f"{100 * fragmentation(shown['statistics']):.1f} % at the end", (page.text["curve-end"], shown["statistics"])
    assert f"fragmentation {page.text['curve-end'].removesuffix(' at the end')}" in page.text["pools"], page.text["pools"]
    assert "live at the end" in page.text["facts"], page.text["facts"]


def fragmentation(figures):
    idle = figures["free_bytes"] + figures["cached_bytes"]
    return 1 - max(figures["largest_free"], figures["largest_cached"]) / idle if idle else 0


def parts_are_the_whole(snapshot):
    """Of a real run: the parts of the slabs are what the figures of the pool say."""
    for pool in snapshot["pools"]:
        figures, sums = pool["statistics"], {}
        for slab in pool["slabs"]:
            assert sum(part["bytes"] for part in slab["parts"]) == slab["bytes"], slab
            for part in slab["parts"]:
                sums[part["state"]] = sums.get(part["state"], 0) + part["bytes"]
        expected = {"live": figures["held_bytes"], "cached": figures["cached_bytes"], "free": figures["free_bytes"]}
        assert {state: size for state, size in expected.items() if size} == sums, (pool["name"], sums)
        assert sum(sums.values()) == figures["reserved_bytes"], pool["name"]


def replayed(folder):
    snapshot = json.loads((folder / "replay.json").read_text())
    page = open_page(folder, "replay")
    common(page, snapshot)
    events = snapshot["traces"][0]["events"]
    kinds = [event["kind"] for event in events]
    parts_are_the_whole(snapshot)
    live = {event["block"]: event["bytes"] for event in events if event["kind"] == "alloc"}
    for event in events:
        if event["kind"] == "free":
            live.pop(event["block"])
    expect(page, allocations=kinds.count("alloc"), unfreed=len(live), unfreed_bytes=sum(live.values()), tracked=0)
    expect(page, end_bytes=snapshot["pools"][-1]["statistics"]["requested_bytes"])
    size = page.text["timeline-end"].removesuffix(" live at the end")
    assert page.text["timeline-name"] == "Memory of replay by allocation" and f"{len(live)} blocks, {size}:" in page.text["end-sum"], page.text["end-sum"]
    assert page.count("holders", "tr") > 3, page.text["end-sum"]


def simulated(folder):
    snapshot = json.loads((folder / "simulation.json").read_text())
    page = open_page(folder, "simulation")
    common(page, snapshot)
    parts_are_the_whole(snapshot)
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
    expect(page, allocations=len(blocks), tracked=len(snapshot["trackers"][0]["leaks"]), buffers=len(snapshot["managers"][0]["buffers"]), found=len(blocks))
    for text in ("</script><script>document.body.dataset.broken=1</script>", "<img src=x onerror=document.body.dataset.broken=1>"):
        assert text in page.text["ends"] and text in page.text["buffers"], text
    assert page.count("ends", "img") == 0 and page.count("ends", "script") == 0
    assert "12 registered" not in page.text["buffers"] and "9 registered buffers" in page.text["buffers"], page.text["buffers"]
    failed = sum(event["kind"] == "refused" for event in events)
    assert page.text["refusal"] == f"{failed} refused requests", page.text["refusal"]
    # The key goes from one to the next, and shows what was refused.
    first, second = [at for at, event in enumerate(events) if event["kind"] == "refused"][:2]
    page = open_page(folder, "random", f"moment={first + 1}")
    assert f"event {first + 1:,}," in page.text["selected"], page.text["selected"]
    page = open_page(folder, "random", script=KEY.format("['f', 'f']"))
    assert "refused: 8 GiB" in page.text["selected"] and f"event {second + 1:,}," in page.text["selected"], (first, page.text["selected"])
    assert "too much, requested by src/model.rs:120" in page.text["selected"], page.text["selected"]

    word = "attention"
    found = [block for block in blocks if any(word in (block[field] or "") for field in ("name", "place", "backtrace"))]
    traced = next(block for block in blocks if block["backtrace"])
    page = open_page(folder, "random", f"search={word}&group=place&axis=time&stack=age&block={traced['block']}", dark=True)
    expect(page, found=len(found), events_drawn=len(events))
    assert 0 < len(found) < len(blocks) and f"{len(found):,} of {len(blocks):,} blocks" in page.text["found"], page.text["found"]
    assert "attention.rs:48" in page.text["holders"] and "model.rs" not in page.text["holders"], page.text["holders"]
    selected = page.text["selected"]
    assert f"block {traced['block']} " in selected and "model::forward" in selected and page.count("selected", "pre") == 1, selected


    block = blocks[len(blocks) // 2]
    page = open_page(folder, "random", f"search={block['address'] + block['bytes'] - 1:#x}")
    expect(page, found=1)
    assert f"block {block['block']} (" in page.text["selected"], page.text["selected"]


def without_trace(folder):
    snapshot = json.loads((folder / "live.json").read_text())
    page = open_page(folder, "live")
    leaks = snapshot["trackers"][0]["leaks"]
    expect(page, events=0, tracked=len(leaks), holders=len({leak["name"] or leak["place"] for leak in leaks}), samples=len(snapshot["samples"]) + 1)
    assert "weights" in page.text["holders"] and "live when the snapshot was taken" in page.text["end-sum"], page.text["holders"]


def extreme(folder):
    most = 2**64 - 1
    # The longest blocks that are read.
    block = {"kind": "alloc", "time_ns": most, "bytes": 2**46, "stream": most, "address": most, "name": "largest"}
    events = [{**block, "block": 0}, {**block, "block": most}, {"kind": "free", "block": 0, "time_ns": most}]
    # A C++ name of many parentheses.
    events[1]["backtrace"] = f"0: {'a(' * 100_000}"
    slab = {"number": most, "address": most, "bytes": most, "parts": [{"offset": most - 1, "bytes": 1, "state": "live"}]}
    figures = {name: most for name in json.loads((folder / "random.json").read_text())["pools"][0]["statistics"]}
    (folder / "extreme.json").write_text(json.dumps({
        "version": 1, "pools": [{"name": "all", "statistics": figures, "slabs": [slab]}], "samples": [{"pool": "all", "time_ns": most, "statistics": figures}],
        "traces": [{"name": "same time", "events": events}, {"name": "none", "events": []}],
    }))
    subprocess.run([sys.argv[1], "view", folder / "extreme.json", "--output", folder / "extreme.html"], check=True)
    for axis in ("event", "time"):
        expect(open_page(folder, "extreme", f"axis={axis}"), events=3, allocations=2, unfreed=1, slabs=1)
    for part in ("block=0.5&moment=2.5", "block=&moment=&group=&axis=x", "block=-1&moment=-1&trace=7", "block=99&moment=99&search=0x"):
        expect(open_page(folder, "extreme", part), events=3)
    # More samples at one time than a call can have arguments.
    sample = {"pool": "all", "time_ns": 5, "statistics": {name: 1 for name in figures}}
    (folder / "samples.json").write_text(json.dumps({"version": 1, "samples": [sample] * 150_000}))
    subprocess.run([sys.argv[1], "view", folder / "samples.json", "--output", folder / "samples.html"], check=True)
    expect(open_page(folder, "samples"), samples=150_000)
    page = open_page(folder, "extreme", "trace=1")
    expect(page, events_drawn=0)
    assert "No live block" in page.text["holders"], page.text["holders"]


def pytorch(folder):
    """The state at the peak and at the end, of segments too, as the program that wrote the recording knows it."""
    known = json.loads((folder / "pytorch.json").read_text())
    (live, reserved, segments), end = known["peak"], known["end"]
    page = open_page(folder, "pytorch", size=(2560, 1400))
    expect(page, segments=segments, segment_bytes=reserved, segment_live=live, unfreed=known["live"], unfreed_bytes=end[0], end_bytes=end[0])
    expect(page, events_drawn=known["recorded"] + 1, curve_end=1 - end[0] / end[1])
    assert page.text["curve-name"] == "Free share of the reserved bytes of device 0", page.text["curve-name"]
    assert "## forward ##" in page.text["legend"] and "## backward ##" not in page.text["holders"], page.text["legend"]
    assert page.text["segments"].count("at the peak") == 1 and "reserved from the driver" in page.text["legend"], page.text["segments"]
    # Keys: to the end, two steps back, and to the peak.
    page = open_page(folder, "pytorch", script=KEY.format("['End']"))
    expect(page, segments=end[2], segment_bytes=end[1], segment_live=end[0])
    assert "## backward ##" in page.text["holders"], page.text["holders"]
    last = known["recorded"] + 40
    page = open_page(folder, "pytorch", script=KEY.format("['End', '[', '[']"))
    assert f"event {last - 2:,}," in page.text["moment"], page.text["moment"]
    page = open_page(folder, "pytorch", "moment=100", script=KEY.format("['+', '+', 'p']"))
    expect(page, segments=segments, segment_bytes=reserved, segment_live=live)
    # On a telephone nothing is cut off. A name of several frames is the longest text.
    page = open_page(folder, "pytorch", "group=stack&block=500", size=(390, 2400))
    assert page.body["data-cut"] == "", page.body["data-cut"]
    assert "a_rather_long_name_of_a_source_file" in page.text["selected"] and "all 13 frames" in page.text["selected"], page.text["selected"]


def training(folder):
    """The page in the guide's pictures. Its peak is in the second step, on top of the optimizer's state."""
    page = open_page(folder, "training", "group=place", size=(1100, 1400))
    for text in ("train.py:47 in <module>", "model.py:13 in __init__", "EmbeddingBackward0::apply"):
        assert text in page.text["holders"], page.text["holders"]
    assert "train.py:47 in <module> 501018.25 MiB" in page.text["ends"] and "at the peak, event 390," in page.text["segments"], page.text["segments"]


def named_streams(folder):
    """Streams have the names of the recording."""
    (folder / "streams.csv").write_text("Action,Pointer,Size,Stream\nallocate,0x1000,4096,0x7f2a38001020\nallocate,0x2000,512,0x0\n")
    subprocess.run([sys.argv[1], "view", folder / "streams.csv", "--output", folder / "streams.html"], check=True)
    page = open_page(folder, "streams", "group=stream")
    assert "stream 0x7f2a38001020" in page.text["holders"] and "stream 0x0" in page.text["holders"], page.text["holders"]
    page = open_page(folder, "streams", "block=0")
    assert "stream 0x7f2a38001020" in page.text["selected"], page.text["selected"]


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
    for name in ("replay.json", "simulation.json", "random.json", "live.json", "pytorch.pickle", "training.pickle"):
        subprocess.run([ringmem, "view", folder / name, "--output", (folder / name).with_suffix(".html")], check=True)
    replayed(folder)
    simulated(folder)
    random(folder)
    without_trace(folder)
    extreme(folder)
    pytorch(folder)
    training(folder)
    named_streams(folder)
    for name in ("replay", "simulation", "random"):
        page = open_page(folder, name, size=(390, 2400))
        assert page.body["data-cut"] == "", (name, page.body["data-cut"])
    hidden(folder)


main()
