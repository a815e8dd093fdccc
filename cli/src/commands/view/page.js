'use strict';
// Draws the recording in #data. Every text of it becomes a text node, never markup. Figures about the page are in the data attributes of body.
const data = JSON.parse(document.getElementById('data').textContent);
const $ = (id) => document.getElementById(id);
const facts = document.body.dataset;

// Texts and elements.

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === 'style') Object.assign(node.style, value);
    else if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

function size(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  let unit = 0;
  while (bytes >= 1024 && unit + 1 < units.length) { bytes /= 1024; unit++; }
  return `${Number.isInteger(bytes) ? bytes : bytes.toFixed(2)} ${units[unit]}`;
}

/** Text with the digits that tell times `step` apart. */
function duration(ns, step = ns) {
  const digits = Math.min(15, Math.max(4, Math.ceil(Math.log10(ns / step)) + 1));
  for (const [unit, length] of [['s', 1e9], ['ms', 1e6], ['\u00b5s', 1e3]]) if (ns >= length) return `${+(ns / length).toPrecision(digits)} ${unit}`;
  return `${Math.round(ns)} ns`;
}

const count = (n) => n.toLocaleString('en-US');
const counted = (n, what) => `${count(n)} ${what}${n === 1 ? '' : 's'}`;
const percent = (part) => `${(100 * part).toFixed(1)} %`;
const where = (address) => (address === null ? 'an unknown address' : typeof address === 'string' ? address : `0x${address.toString(16)}`);
const ratio = (part, whole) => (whole > 0 ? part / whole : 0);
const fragmentation = (s) => (s.free_bytes + s.cached_bytes > 0 ? 1 - Math.max(s.largest_free, s.largest_cached) / (s.free_bytes + s.cached_bytes) : 0);

/** The first index whose value meets the condition, of values that do not meet it before values that do. */
function first(values, meets) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (meets(values[middle])) high = middle; else low = middle + 1;
  }
  return low;
}
const above = (values, limit) => first(values, (value) => value > limit);

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** A 32-bit pixel of a canvas from hue in degrees, saturation and lightness from 0 to 1. */
function pixel(hue, saturation, lightness) {
  const part = (n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (lightness - saturation * Math.min(lightness, 1 - lightness) * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return ((255 << 24) | (part(4) << 16) | (part(8) << 8) | part(0)) >>> 0;
}
const css = (value) => `rgb(${value & 255} ${(value >> 8) & 255} ${(value >> 16) & 255})`;

// The blocks of a trace, with the live bytes after each event.

const SHOWN = 9; // groups with a colour of their own
const BEFORE = -Infinity; // the group of blocks of which only the end was recorded
const MANY = 200; // live blocks at the peak from which single bands are too thin to follow
const HUES = [212, 28, 145, 282, 352, 186, 48, 100, 322];

const frameTexts = new Map();
function frameText(at) {
  if (frameTexts.has(at)) return frameTexts.get(at);
  const [name, file, line] = data.frames[at];
  const place = file < 0 ? '' : data.texts[file] + (line > 0 ? `:${line}` : '');
  const text = name < 0 ? place : [place, data.texts[name]].filter(Boolean).join(' in ');
  frameTexts.set(at, text);
  return text;
}
/** The frame that tells most in a stack, as text. */
const placeText = (stack) => (stack < 0 || data.places[stack] < 0 ? null : frameText(data.places[stack]));
/** The frames of a stack that have a line: of Python, or of source with debug information; if there are none, all. */
const sourceFrames = (stack) => {
  const all = data.stacks[stack], lines = all.filter((at) => data.frames[at][2] > 0);
  return lines.length > 1 ? lines : all;
};
const isLibrary = (at) => data.frames[at][3];
const base = (text) => text.replace(/^.*\//, '');
/** The innermost source line of a stack, its place, and two of the place's callers in the program itself; files without their folders. */
function stackText(stack) {
  const lines = sourceFrames(stack), place = data.places[stack], own = lines.filter((at) => data.frames[at][2] > 0 && !isLibrary(at) && at !== place);
  const frames = [lines.find((at) => data.frames[at][2] > 0) ?? place, place, ...own.slice(0, 2)].filter((at) => at >= 0);
  return [...new Set(frames)].map((at) => base(frameText(at))).join(' \u2190 ') || 'no source line';
}

class Trace {
  constructor(raw) {
    Object.assign(this, raw);
    this.n = raw.begin.length;
    this.begin = new Int32Array(this.n);
    this.end = new Int32Array(this.n);
    for (let i = 0, at = 0; i < this.n; i++) {
      this.begin[i] = at += raw.begin[i];
      this.end[i] = raw.life[i] > 0 ? at + raw.life[i] : raw.events;
    }
    this.bytes = Float64Array.from(raw.bytes);
    this.starts = new Int32Array(raw.events).fill(-1);
    this.ends = new Int32Array(raw.events).fill(-1);
    for (let i = 0; i < this.n; i++) {
      this.starts[this.begin[i]] = i;
      if (this.end[i] < raw.events) this.ends[this.end[i]] = i;
    }
    this.total = new Float64Array(raw.events);
    this.peak = 0;
    for (let at = 0, live = 0; at < raw.events; at++) {
      if (this.starts[at] >= 0) live += this.bytes[this.starts[at]];
      if (this.ends[at] >= 0) live -= this.bytes[this.ends[at]];
      this.total[at] = live;
      if (live > this.total[this.peak]) this.peak = at;
    }
    this.match = new Uint8Array(this.n).fill(1);
    // Times since the first event: the numbers of JavaScript tell those apart.
    this.base = raw.begun ?? 0;
    this.times = null;
    if (raw.begun !== null && raw.events > 0) {
      this.times = Float64Array.from(raw.times);
      for (let at = 1; at < raw.events; at++) this.times[at] += this.times[at - 1];
    }
    // Memory from the driver after each event. After the last comes all that followed it.
    const within = (at) => Math.min(Math.max(at, 0), Math.max(raw.events - 1, 0));
    this.segments = raw.segments.map(([address, bytes, stream, begin, end, piece]) => ({ address: Number(address), bytes, stream, piece, begin: within(begin), end: end < 0 ? Infinity : within(end) }));
    this.reserved = null;
    if (raw.segments.length && raw.events > 0) {
      this.reserved = new Float64Array(raw.events);
      for (const { bytes, begin, end } of this.segments) {
        this.reserved[begin] += bytes;
        if (end < raw.events) this.reserved[end] -= bytes;
      }
      for (let at = 1; at < raw.events; at++) this.reserved[at] += this.reserved[at - 1];
    }
  }

  /** The number of events until a time of the snapshot. */
  until(time) { return above(this.times, time - this.base); }

  isLive(i, at) { return this.begin[i] <= at && this.end[i] > at; }
  text(index) { return index < 0 ? null : data.texts[index]; }
  place(i) { return placeText(this.stack[i]); }
  /** By its recorded name, if the number is not the recorded one. */
  streamText(stream) { return stream < 0 ? 'no stream' : `stream ${this.streams[stream] ?? stream}`; }

  /** The group of a block, as a number, and the text of such a number. */
  key(i, mode) {
    const place = this.stack[i] < 0 ? -1 : data.places[this.stack[i]];
    switch (mode) {
      case 'place': return place >= 0 ? place : this.label[i] >= 0 ? -2 - this.label[i] : i < this.before ? BEFORE : -1;
      case 'name': return this.label[i] >= 0 ? -2 - this.label[i] : place >= 0 || i >= this.before ? place : BEFORE;
      case 'stack': return this.stack[i];
      case 'stream': return this.stream[i];
      default: return this.bytes[i] > 0 ? Math.ceil(Math.log2(this.bytes[i])) : -1;
    }
  }

  keyText(key, mode) {
    if (key === BEFORE) return 'before the recording';
    switch (mode) {
      case 'place': case 'name': return key < -1 ? data.texts[-2 - key] : key < 0 ? (mode === 'name' ? 'no name' : 'unknown line') : frameText(key);
      case 'stack': return key < 0 ? 'no stack' : stackText(key);
      case 'stream': return this.streamText(key);
      default: return key < 0 ? '0 B' : `up to ${size(2 ** key)}`;
    }
  }

  /** Numbers the groups, those first that had most live bytes at any one time: they have colours. */
  regroup(mode) {
    const known = new Map(), sums = [], raw = new Int32Array(this.n);
    for (let i = 0; i < this.n; i++) {
      const key = this.key(i, mode);
      let number = known.get(key);
      if (number === undefined) { known.set(key, (number = sums.length)); sums.push({ key: this.keyText(key, mode), live: 0, most: 0 }); }
      raw[i] = number;
    }
    for (let at = 0; at < this.events; at++) {
      if (this.ends[at] >= 0) sums[raw[this.ends[at]]].live -= this.bytes[this.ends[at]];
      if (this.starts[at] < 0) continue;
      const sum = sums[raw[this.starts[at]]];
      sum.live += this.bytes[this.starts[at]];
      sum.most = Math.max(sum.most, sum.live);
    }
    const order = sums.map((_, number) => number).sort((a, b) => sums[b].most - sums[a].most);
    const rank = new Int32Array(order.length);
    order.forEach((number, at) => { rank[number] = at; });
    this.groups = order.map((number) => sums[number]);
    this.group = raw.map((number) => rank[number]);
    this.restack();
  }

  /** Orders the blocks from the bottom of the stack: by age, or by group and then by age. `slot` is a block's place, `at` the reverse. */
  restack() {
    this.slot = new Int32Array(this.n);
    this.at = new Int32Array(this.n);
    const next = new Int32Array(this.groups.length + 1);
    const kind = state.stack === 'group' ? this.group : this.group.map(() => 0);
    for (const number of kind) next[number + 1]++;
    for (let number = 1; number < next.length; number++) next[number] += next[number - 1];
    kind.forEach((number, i) => { this.slot[i] = next[number]++; this.at[this.slot[i]] = i; });
  }

  find(words) {
    const block = words === '' ? NaN : Number(words), address = /^0x[0-9a-f]{1,16}$/.test(words) ? BigInt(words) : null;
    const texts = data.texts.map((text) => text.toLowerCase().includes(words));
    const frames = data.frames.map((frame, at) => (frame[0] >= 0 && texts[frame[0]]) || (frame[1] >= 0 && texts[frame[1]]) || frameText(at).toLowerCase().includes(words));
    const stacks = data.stacks.map((stack) => stack.some((at) => frames[at]));
    let found = 0;
    for (let i = 0; i < this.n; i++) {
      const at = this.address[i];
      const hit = words === '' || (i < this.before && 'before the recording'.includes(words)) || (this.label[i] >= 0 && texts[this.label[i]]) || (this.stack[i] >= 0 && stacks[this.stack[i]]) || i === block ||
        (at !== null && address !== null && address >= BigInt(at) && address < BigInt(at) + BigInt(Math.max(this.bytes[i], 1)));
      this.match[i] = hit ? 1 : 0;
      found += this.match[i];
    }
    return found;
  }

  /** As `ringmem replay` numbers events: from 1. */
  when(at) {
    return `event ${count(at + 1)}` + (this.times && at < this.events ? `, ${duration(this.times[at])}` : '');
  }

  describe(i) {
    const place = this.place(i), name = this.text(this.label[i]) ?? place ?? `block ${i}`;
    const life = this.times && this.end[i] < this.events ? `, lived ${duration(this.times[this.end[i]] - this.times[this.begin[i]])}` : '';
    const born = i < this.before ? 'live before the recording' : `allocated at ${this.when(this.begin[i])}`;
    return [
      `${name}: ${size(this.bytes[i])}`,
      place ? `allocated by ${place}` : 'source line not recorded',
      `block ${i} (${count(this.bytes[i])} bytes) at ${where(this.address[i])}, ${this.streamText(this.stream[i])}`,
      `${born}; ${this.end[i] < this.events ? `freed at ${this.when(this.end[i])}${life}` : 'live at the end'}`,
    ];
  }

  /** The memory from the driver after an event: rows of segments with the live blocks in them, those with most free bytes first. */
  layout(at) {
    const rows = [];
    for (const segment of this.segments.filter(({ begin, end }) => begin <= at && end > at).sort((a, b) => a.address - b.address)) {
      const last = rows[rows.length - 1];
      if (last && last.piece && segment.piece && last.stream === segment.stream && last.address + last.bytes === segment.address) last.bytes += segment.bytes;
      else rows.push({ ...segment, parts: [], live: 0 });
    }
    const live = [];
    for (let i = 0; i < this.n && this.begin[i] <= at; i++) if (this.end[i] > at && this.address[i] !== null) live.push([Number(this.address[i]), i]);
    live.sort((a, b) => a[0] - b[0]);
    let row = 0;
    for (const [address, i] of live) {
      while (row < rows.length && rows[row].address + rows[row].bytes <= address) row++;
      const segment = rows[row];
      if (!segment || address < segment.address) continue;
      const offset = address - segment.address, bytes = Math.min(this.bytes[i], segment.bytes - offset);
      segment.parts.push({ offset, bytes, state: 'live', block: i });
      segment.live += bytes;
    }
    for (const segment of rows) segment.label = size(segment.bytes);
    return rows.sort((a, b) => b.bytes - b.live - (a.bytes - a.live) || b.bytes - a.bytes || a.address - b.address);
  }
}

// State.

const traces = data.traces.map((raw) => new Trace(raw));
const sampled = new Map();
const sample = (name, time_ns, statistics) => {
  if (!sampled.has(name)) sampled.set(name, []);
  sampled.get(name).push({ time_ns, statistics });
};
for (const { pool, time_ns, statistics } of data.samples) sample(pool, time_ns, statistics);
// The figures of a pool itself are its last sample: the curve ends at those of its table.
for (const pool of data.pools) if (pool.time_ns !== null && sampled.has(pool.name)) sample(pool.name, pool.time_ns, pool.statistics);
for (const samples of sampled.values()) samples.sort((a, b) => a.time_ns - b.time_ns);
const wanted = new URLSearchParams(location.hash.slice(1));
const wantedNumber = (name) => (/^\d{1,15}$/.test(wanted.get(name) ?? '') ? Number(wanted.get(name)) : null);
const state = { trace: null, group: 'size', stack: 'age', axis: 'event', from: 0, to: 1, moment: -1, chosen: -1, words: '' };

function remember() {
  const hash = new URLSearchParams();
  for (const [name, value] of [['search', state.words], ['block', state.chosen < 0 ? '' : String(state.chosen)], ['moment', state.moment < 0 ? '' : String(state.moment + 1)], ['trace', traces.length > 1 ? $('trace').value : ''], ['group', state.group], ['stack', state.stack], ['axis', state.axis]]) if (value) hash.set(name, value);
  try { history.replaceState(null, '', `#${hash}`); } catch { /* some browsers refuse it for files */ }
}

function extent() {
  const trace = state.trace;
  if (state.axis === 'time') return [0, Math.max(trace.times[trace.events - 1] * (1 + 1e-9), 1)];
  // Blocks from before the recording are there from the left on.
  const from = Math.min(Math.max(trace.before - 1, 0), Math.max(trace.events - 1, 0));
  return [from, Math.max(trace.events, 1)];
}

/** The number of events before a place on the axis. */
const before = (x) => (state.axis === 'time' ? first(state.trace.times, (time) => time >= x) : Math.max(0, Math.ceil(x)));
const place = (at) => (state.axis === 'time' ? state.trace.times[Math.min(at, state.trace.events - 1)] : at);

// The timeline. Each pixel column shows the state with most live bytes in its events. Bands are found by a prefix sum over the live blocks
// (a Fenwick tree). From one column to the next only blocks are added and removed that outlive one of them: of millions of events, most are those of
// blocks that no column shows.

const LEFT = 76, RIGHT = 10, TOP = 6, BOTTOM = 20;
const plot = { width: 0, height: 0, scale: 1, ids: new Int32Array(0), columns: new Int32Array(0), bounds: new Int32Array(1), marks: [], most: 1 };

function fit(canvas) {
  const scale = Math.min(window.devicePixelRatio || 1, 2);
  const [width, height] = [Math.max(canvas.clientWidth, 200), Math.max(canvas.clientHeight, 20)];
  canvas.width = width * scale;
  canvas.height = height * scale;
  const context = canvas.getContext('2d');
  context.scale(scale, scale);
  context.font = '11px system-ui, "DejaVu Sans", sans-serif';
  return { context, width, height, scale };
}

function palette() {
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  const shades = (hue, saturation, lightness) => [0, 0.05, -0.05].map((more) => pixel(hue, saturation, lightness + more));
  const groups = HUES.map((hue) => shades(hue, dark ? 0.5 : 0.58, dark ? 0.5 : 0.6));
  // Neither the grey of free memory nor that of blocks that no search found.
  groups.push(shades(38, 0.16, dark ? 0.38 : 0.58));
  const dim = pixel(215, 0.08, dark ? 0.17 : 0.92);
  return { groups, dim: [dim, dim, dim], edge: pixel(215, 0.2, dark ? 0.08 : 0.98) };
}
const coloured = (group) => palette().groups[Math.min(group, SHOWN)][0];

function bands() {
  const trace = state.trace, canvas = $('bands');
  const { context, width, height, scale } = fit(canvas);
  // A frame that is not shown has no height: a canvas needs a pixel, and the resize when it is shown draws again.
  const [w, h] = [width - LEFT - RIGHT, height - TOP - BOTTOM].map((length) => Math.max(1, Math.floor(length * scale)));
  const step = (state.to - state.from) / w, columns = new Int32Array(w), bounds = new Int32Array(w + 1);
  let most = 0, drawn = 0, painted = 0;
  for (let c = 0, next = before(state.from); c < w; c++) {
    const start = (bounds[c] = next);
    next = Math.min(c + 1 === w ? before(state.to) : before(state.from + (c + 1) * step), trace.events);
    let best = next > start ? start : start - 1;
    for (let at = start + 1; at < next; at++) if (trace.total[at] > trace.total[best]) best = at;
    drawn += Math.max(0, next - start);
    columns[c] = best;
    bounds[c + 1] = next;
    if (best >= 0) most = Math.max(most, trace.total[best]);
  }
  if (trace.reserved) for (let at = Math.max(bounds[0] - 1, 0); at < bounds[w]; at++) most = Math.max(most, trace.reserved[at]);
  most = most * 1.04 || 1;

  const image = context.createImageData(w, h), pixels = new Uint32Array(image.data.buffer), ids = new Int32Array(w * h).fill(-1);
  const { groups, dim, edge } = palette(), unit = most / h, tree = new Float64Array(trace.n + 1);
  let top = 1;
  while (top * 2 <= trace.n) top *= 2;
  const add = (i, bytes) => { for (let at = trace.slot[i] + 1; at <= trace.n; at += at & -at) tree[at] += bytes; };
  let now = columns[0];
  for (let at = 1; at <= trace.n; at++) {
    const i = trace.at[at - 1], parent = at + (at & -at);
    if (trace.isLive(i, now)) tree[at] += trace.bytes[i];
    if (parent <= trace.n) tree[parent] += tree[at];
  }
  for (let c = 0; c < w; c++) {
    if (c > 0 && columns[c] === columns[c - 1]) {
      for (let at = c; at < w * h; at += w) { pixels[at] = pixels[at - 1]; ids[at] = ids[at - 1]; }
      continue;
    }
    for (let at = now + 1; at <= columns[c]; at++) {
      const started = trace.starts[at], ended = trace.ends[at];
      if (started >= 0 && trace.end[started] > columns[c]) add(started, trace.bytes[started]);
      if (ended >= 0 && trace.begin[ended] <= now) add(ended, -trace.bytes[ended]);
    }
    now = Math.max(now, columns[c]);
    for (let row = 0; row < h;) {
      const offset = (row + 0.5) * unit;
      let slot = 0, rest = offset;
      for (let jump = top; jump > 0; jump >>= 1) if (slot + jump <= trace.n && tree[slot + jump] <= rest) { slot += jump; rest -= tree[slot]; }
      if (slot >= trace.n) break;
      const i = trace.at[slot];
      const end = Math.min(h, Math.max(row + 1, Math.ceil((offset - rest + trace.bytes[i]) / unit - 0.5)));
      const value = trace.match[i] ? groups[Math.min(trace.group[i], SHOWN)][i % 3] : dim[i % 3];
      const edged = end - row > 4 * scale;
      painted += end - row;
      for (let y = row; y < end; y++) {
        const at = (h - 1 - y) * w + c;
        pixels[at] = edged && y + 1 === end ? edge : value;
        ids[at] = i;
      }
      row = end;
    }
  }
  context.putImageData(image, LEFT * scale, TOP * scale);
  Object.assign(plot, { width: w, height: h, scale, ids, columns, bounds, most });
  [facts.eventsDrawn, facts.painted] = [drawn, painted];
  yAxis(context, width, height, most);
  xAxis(context, width, height);
  const across = (at) => LEFT + ((place(at) - state.from) / (state.to - state.from)) * (width - LEFT - RIGHT);
  if (trace.reserved) {
    const y = (bytes) => TOP + (1 - bytes / most) * (height - TOP - BOTTOM);
    stepped(context, trace.reserved, (c) => LEFT + c / scale, y, colour('reserved'));
  }
  if (trace.n > 0 && across(trace.peak) >= LEFT && across(trace.peak) <= width - RIGHT) {
    const x = across(trace.peak), right = x > width - 110;
    context.fillStyle = colour('text');
    context.fillRect(Math.round(x), TOP, 1, 8);
    context.textAlign = right ? 'right' : 'left';
    context.textBaseline = 'top';
    context.fillText('peak', x + (right ? -4 : 4), TOP - 2);
  }
  plot.marks = [];
  for (const [at] of trace.refused) {
    const x = across(at);
    if (x < LEFT || x > width - RIGHT) continue;
    plot.marks.push({ at, x });
    context.fillStyle = colour('bad');
    context.beginPath();
    context.moveTo(x - 4, TOP - 5); context.lineTo(x + 4, TOP - 5); context.lineTo(x, TOP + 4);
    context.fill();
  }
}

/** A line of a value per event: each column has a bar from the least to the largest value of its events and of the one before them. */
function stepped(context, values, x, y, style) {
  context.fillStyle = style;
  for (let c = 0; c < plot.width; c++) {
    const from = Math.max(plot.bounds[c] - 1, state.trace.before - 1, 0), to = plot.bounds[c + 1];
    if (plot.bounds[c] >= values.length && c > 0 && to === plot.bounds[c]) continue;
    let least = values[from], most = least;
    for (let at = from + 1; at < to; at++) {
      if (values[at] < least) least = values[at];
      if (values[at] > most) most = values[at];
    }
    context.fillRect(x(c), y(most) - 0.75, 1 / plot.scale + 0.01, y(least) - y(most) + 1.5);
  }
}

function yAxis(context, width, height, most) {
  let step = 1;
  while (most / step > 6) step *= 2;
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  for (let value = 0; value <= most; value += step) {
    const y = TOP + (1 - value / most) * (height - TOP - BOTTOM);
    context.globalAlpha = 0.5;
    context.fillStyle = colour('line');
    context.fillRect(LEFT, Math.round(y), width - LEFT - RIGHT, 1);
    context.globalAlpha = 1;
    context.fillStyle = colour('muted');
    if (y > TOP + 5 || value === 0) context.fillText(size(value), LEFT - 7, y);
  }
}

function xAxis(context, width, height) {
  const origin = state.axis === 'time' ? extent()[0] : 0, span = state.to - state.from;
  let step = 10 ** Math.floor(Math.log10(span / 6));
  const ticks = Math.min(10, Math.max(2, (width - LEFT - RIGHT) / 72));
  for (const factor of [2, 2.5, 2, 2, 2.5]) if (span / step > ticks) step *= factor;
  if (state.axis !== 'time') step = Math.max(1, Math.round(step));
  context.textBaseline = 'top';
  context.fillStyle = colour('muted');
  const least = Math.ceil((state.from - origin) / step);
  for (let at = 0; at < 12; at++) {
    const value = origin + (least + at) * step;
    if (!(value <= state.to)) break;
    const x = LEFT + ((value - state.from) / span) * (width - LEFT - RIGHT);
    context.fillRect(Math.round(x), height - BOTTOM, 1, 4);
    const text = state.axis === 'time' ? duration(value - origin, step) : count(Math.round(value));
    context.textAlign = x > width - 60 ? 'right' : x < LEFT + 8 ? 'left' : 'center';
    context.fillText(text, x, height - BOTTOM + 6);
  }
}

/** The crosshair, the chosen moment and the block under the pointer, on a canvas of their own. */
function over(hovered, x) {
  const { context, width, height } = fit($('over'));
  if (!state.trace) return;
  const paint = (id, alpha) => {
    const image = context.createImageData(plot.width, plot.height), pixels = new Uint32Array(image.data.buffer);
    for (let at = 0; at < plot.ids.length; at++) if (plot.ids[at] === id) pixels[at] = alpha;
    return image;
  };
  const marked = hovered >= 0 ? hovered : state.chosen;
  if (marked >= 0) context.putImageData(paint(marked, 0xa0ffffff), LEFT * plot.scale, TOP * plot.scale);
  const line = (at, style) => {
    if (at < LEFT || at > width - RIGHT) return;
    context.fillStyle = style;
    context.fillRect(Math.round(at), TOP, 1, height - TOP - BOTTOM);
  };
  if (x !== undefined) line(x, colour('muted'));
  if (state.moment >= 0) line(LEFT + ((place(state.moment) - state.from) / (state.to - state.from)) * (width - LEFT - RIGHT), colour('accent'));
}

/** The block and the event under a pointer over the timeline. */
function under(event) {
  const box = $('over').getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  const [c, row] = [Math.floor((x - LEFT) * plot.scale), Math.floor((y - TOP) * plot.scale)];
  const mark = y < TOP + 6 ? plot.marks.find((mark) => Math.abs(mark.x - x) < 6) : null;
  if (mark) return { x, block: -1, moment: mark.at };
  if (c < 0 || c >= plot.width || row < 0 || row >= plot.height) return { x, block: -1, moment: -1 };
  return { x, block: plot.ids[row * plot.width + c], moment: plot.columns[c] };
}

function tip(event, lines) {
  const box = $('tip');
  box.hidden = !lines;
  if (!lines) return;
  box.replaceChildren(...lines.filter(Boolean).map((line, at) => el('div', {}, at === 0 ? el('b', {}, line) : line)));
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${event.clientY + 18 + box.offsetHeight > innerHeight ? event.clientY - box.offsetHeight - 10 : event.clientY + 18}px`;
}

function choose(block, moment) {
  const trace = state.trace;
  if (moment >= 0) state.moment = moment;
  state.chosen = block;
  const box = $('selected'), refused = block < 0 ? refusedAt(state.moment) : null;
  box.hidden = block < 0 && !refused;
  if (!box.hidden) {
    const { lines, stack } = refused ?? { lines: trace.describe(block), stack: trace.stack[block] };
    const shown = lines.map((line, at) => el(at === 0 ? 'b' : 'div', {}, line));
    if (stack >= 0) {
      const all = data.stacks[stack], source = sourceFrames(stack);
      shown.push(el('pre', {}, source.map(frameText).join('\n')));
      if (source.length < all.length) shown.push(el('details', {}, el('summary', {}, `all ${count(all.length)} frames`), el('pre', {}, all.map(frameText).join('\n'))));
    }
    box.replaceChildren(...shown);
  }
  remember();
  over(-1);
  legend();
  holders();
  layouts();
}

/** Chooses an event, and brings it into view. */
function go(moment) {
  const at = Math.min(Math.max(moment, 0), state.trace.events - 1), span = state.to - state.from;
  if (at < 0) return;
  choose(-1, at);
  if (place(at) < state.from || place(at) >= state.to) pan(place(at) - span / 2, place(at) + span / 2);
}

function pan(from, to) {
  const [begin, end] = extent(), least = state.axis === 'time' ? 100 : 4;
  const span = Math.min(Math.max(to - from, Math.min(least, end - begin)), end - begin);
  state.from = Math.min(Math.max(from, begin), end - span);
  state.to = state.from + span;
  later();
}

function zoom(factor, at = 0.5) {
  const span = state.to - state.from, around = state.from + span * at;
  pan(around - span * factor * at, around + span * factor * (1 - at));
}

let waiting = false;
function later() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; redraw(); });
}

function redraw() {
  const begun = performance.now();
  if (state.trace) { bands(); over(-1); }
  curve();
  facts.drawMs = (performance.now() - begun).toFixed(1);
}

/** The groups with their live bytes at the chosen moment, as in the table of holders. */
function legend() {
  const trace = state.trace, at = state.moment < 0 ? trace.peak : state.moment, live = new Float64Array(trace.groups.length);
  for (let i = 0; i < trace.n && trace.begin[i] <= at; i++) if (trace.end[i] > at) live[trace.group[i]] += trace.bytes[i];
  const item = (group, text, bytes) =>
    el('span', { title: text }, el('i', { className: 'swatch', style: { background: css(coloured(group)) } }), el('b', { style: { direction: text.includes('\u2190') ? 'ltr' : '' } }, el('bdi', {}, text)), bytes > 0 ? el('small', { title: 'live at the chosen moment' }, size(bytes)) : null);
  const items = trace.groups.slice(0, SHOWN).map((group, number) => item(number, group.key, live[number]));
  const rest = trace.groups.length - items.length;
  if (rest > 0) items.push(item(SHOWN, counted(rest, 'other group'), live.subarray(SHOWN).reduce((sum, bytes) => sum + bytes, 0)));
  if (trace.reserved) items.push(el('span', {}, el('i', { className: 'line', style: { borderTopColor: colour('reserved') } }), el('b', {}, 'reserved from the driver'), el('small', {}, size(trace.reserved[at]))));
  $('legend').replaceChildren(...items);
}

/** The next refused request after the chosen moment, or the first. */
function refusal() {
  const { refused } = state.trace;
  return refused.length ? go((refused.find(([at]) => at > state.moment) ?? refused[0])[0]) : undefined;
}

/** The refused request at an event, as lines. */
function refusedAt(moment) {
  const found = state.trace.refused.find(([at]) => at === moment);
  if (!found) return null;
  const [at, bytes, label, stack] = found, place = placeText(stack), trace = state.trace;
  const there = trace.reserved ? `, ${size(trace.reserved[at])} reserved` : '';
  return { stack, lines: [`refused: ${size(bytes)}`, [trace.text(label), place && `requested by ${place}`].filter(Boolean).join(', ') || 'source line not recorded', `${trace.when(at)}, while ${size(trace.total[at])} were live${there}`] };
}

// Fragmentation over time, on the same axis: of a pool from its samples, of a trace from its segments.

function curve() {
  const name = $('pool').value, samples = sampled.get(name), trace = state.trace, recorded = !samples && trace && trace.reserved;
  const { context, width, height } = fit($('curve'));
  facts.samples = samples ? samples.length : 0;
  $('curve').onmousemove = $('curve').onmouseleave = null;
  $('curve-name').textContent = samples ? `Fragmentation of pool ${name}` : recorded ? `Free share of the reserved bytes of ${trace.name}` : 'Fragmentation';
  $('curve-key').hidden = !samples;
  $('curve-end').textContent = '';
  if (!samples && !recorded) {
    context.fillStyle = colour('muted');
    context.textBaseline = 'middle';
    return context.fillText('No samples. Call Snapshot::sample now and then, or use ringmem replay --snapshot.', 8, height / 2);
  }
  const bottom = height - 8, tall = bottom - TOP, wide = width - LEFT - RIGHT;
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  for (const part of [0, 0.5, 1]) {
    context.fillStyle = colour('grid');
    context.fillRect(LEFT, Math.round(bottom - part * tall), wide, 1);
    context.fillStyle = colour('muted');
    context.fillText(`${100 * part} %`, LEFT - 7, bottom - part * tall);
  }
  context.save();
  context.beginPath();
  context.rect(LEFT, 0, wide, height);
  context.clip();
  if (recorded) {
    const free = (trace.free ??= trace.total.map((live, at) => 1 - ratio(live, trace.reserved[at])));
    stepped(context, free, (c) => LEFT + c / plot.scale, (part) => bottom - Math.max(part, 0) * tall, colour('accent'));
    context.restore();
    const last = trace.events - 1;
    facts.curveEnd = free[last];
    $('curve-end').textContent = `${percent(free[last])} at the end`;
    $('curve').onmousemove = (event) => {
      const { moment } = under({ clientX: event.clientX, clientY: $('over').getBoundingClientRect().top + TOP + 1 });
      tip(event, moment >= 0 ? [`${percent(free[moment])} free`, `${size(trace.total[moment])} live of ${size(trace.reserved[moment])} reserved`, trace.when(moment)] : null);
    };
    $('curve').onmouseleave = () => tip();
    return;
  }
  const shared = trace && trace.times, begun = samples[0].time_ns, ended = Math.max(samples[samples.length - 1].time_ns, begun + 1);
  const at = (sample) => {
    if (!shared) return (sample.time_ns - begun) / (ended - begun);
    const x = state.axis === 'time' ? sample.time_ns - trace.base : trace.until(sample.time_ns);
    return (x - state.from) / (state.to - state.from);
  };
  // By columns: where samples are denser than pixels, a band from the least to the largest, and their mean.
  const columns = [];
  for (const sample of samples) {
    const c = Math.floor(at(sample) * wide), last = columns[columns.length - 1];
    if (last && last.c === c) last.samples.push(sample); else columns.push({ c, samples: [sample] });
  }
  const line = (value, style, dashes, thick) => {
    context.fillStyle = context.strokeStyle = style;
    context.setLineDash(dashes);
    context.lineWidth = thick;
    context.beginPath();
    for (const { c, samples } of columns) {
      const values = samples.map((sample) => value(sample.statistics));
      const [least, most] = values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
      context.globalAlpha = 0.35;
      if (samples.length > 1) context.fillRect(LEFT + c, bottom - most * tall, 1, (most - least) * tall);
      context.globalAlpha = 1;
      context.lineTo(LEFT + (samples.length > 1 ? c + 0.5 : at(samples[0]) * wide), bottom - (values.reduce((sum, value) => sum + value, 0) / values.length) * tall);
    }
    context.stroke();
  };
  line((s) => ratio(s.held_bytes, s.reserved_bytes), colour('muted'), [4, 3], 1);
  line(fragmentation, colour('accent'), [], 1.6);
  context.restore();
  facts.curveEnd = fragmentation(samples[samples.length - 1].statistics);
  $('curve-end').textContent = `${percent(facts.curveEnd)} at the end`;
  $('curve').onmousemove = (event) => {
    const x = (event.clientX - $('curve').getBoundingClientRect().left - LEFT) / wide;
    let best = samples[0];
    for (const sample of samples) if (Math.abs(at(sample) - x) < Math.abs(at(best) - x)) best = sample;
    const s = best.statistics;
    tip(event, [`Fragmentation ${percent(fragmentation(s))}`, `${size(s.held_bytes)} live, ${size(s.cached_bytes)} cached, ${size(s.free_bytes)} free of ${size(s.reserved_bytes)} reserved`,
      `largest free piece ${size(Math.max(s.largest_free, s.largest_cached))}`, shared ? `after ${counted(trace.until(best.time_ns), 'event')}` : duration(best.time_ns - begun)]);
  };
  $('curve').onmouseleave = () => tip();
}

// Slabs and segments, to scale.

const STATES = ['live', 'cached', 'pending', 'free'];
const ROW = 20, BARS = 15, FEW = 12, TALL = 800; // rows: Firefox draws no canvas of more than 32767 pixels, Chromium none of more than 65535

/** Live blocks by address at the time of a pool: of the trackers, and of the traces. */
function owners(pool) {
  const found = [];
  for (const tracker of data.trackers) {
    for (const leak of tracker.leaks) {
      if (leak.address === null) continue;
      found.push({ address: BigInt(leak.address), lines: [leak.name, leak.place && `allocated by ${leak.place}`, `${count(leak.bytes)} bytes requested`] });
    }
  }
  for (const trace of traces) {
    const at = trace.times && pool.time_ns !== null ? trace.until(pool.time_ns) - 1 : trace.events - 1;
    for (let i = 0; i < trace.n; i++) {
      if (trace.address[i] !== null && trace.isLive(i, at)) found.push({ address: BigInt(trace.address[i]), get lines() { return trace.describe(i); } });
    }
  }
  return found.sort((a, b) => (a.address < b.address ? -1 : a.address > b.address ? 1 : 0));
}

function slabs() {
  $('slabs').hidden = !data.pools.length;
  $('states').replaceChildren(...STATES.flatMap((name) => [el('i', { className: 'swatch', style: { background: `var(--${name})` } }), name]));
  $('pools').replaceChildren(...data.pools.map(poolBox));
  for (const box of $('pools').children) box.draw();
}

function poolBox(pool) {
  const s = pool.statistics, sums = Object.fromEntries(STATES.map((name) => [name, 0]));
  for (const slab of pool.slabs) for (const part of slab.parts) sums[part.state] += part.bytes;
  const figures = [counted(pool.slabs.length, 'slab'), `${size(s.reserved_bytes)} reserved (peak ${size(s.reserved_peak)})`, ...STATES.map((name) => `${size(sums[name])} ${name}`),
    `fragmentation ${percent(fragmentation(s))}`, `hits ${percent(ratio(s.hits, s.hits + s.misses))}`];
  let known = null;
  const lines = (slab, part) => {
    const address = slab.address === null ? null : BigInt(slab.address) + BigInt(part.offset);
    known ??= owners(pool);
    const owner = address === null || part.state !== 'live' ? null : known[first(known, (each) => each.address >= address + BigInt(part.bytes)) - 1];
    return [`${size(part.bytes)} ${part.state}`, `slab ${slab.number}, offset ${count(part.offset)}, ${where(address)}`, ...(owner && owner.address >= address ? owner.lines : [])];
  };
  const rows = pool.slabs.map((slab) => ({ ...slab, label: size(slab.bytes) }));
  return rowsBox(pool.name, figures, rows, 'slab', STATES.map((name) => `--${name}`), (part) => STATES.indexOf(part.state), lines);
}

/** The segments of a trace at the chosen moment. */
function layouts() {
  const trace = state.trace, box = $('layout');
  $('segments').hidden = !trace || !trace.reserved;
  if ($('segments').hidden) return;
  const at = state.moment < 0 ? trace.peak : state.moment, rows = trace.layout(at), whole = rows.reduce((sum, row) => sum + row.bytes, 0), live = rows.reduce((sum, row) => sum + row.live, 0);
  Object.assign(facts, { segments: rows.length, segmentBytes: whole, segmentLive: live });
  let gap = 0;
  for (const row of rows) {
    let end = 0;
    for (const part of [...row.parts, { offset: row.bytes, bytes: 0 }]) {
      gap = Math.max(gap, part.offset - end);
      end = part.offset + part.bytes;
    }
  }
  facts.longestGap = gap;
  const figures = [counted(rows.length, 'segment'), `${size(whole)} reserved`, `${size(live)} live`, `${size(whole - live)} free (${percent(ratio(whole - live, whole))})`, `longest free piece ${size(gap)}`];
  const lines = (row, part) => [...(part.block === undefined ? [`${size(part.bytes)} free`] : trace.describe(part.block)), `segment of ${size(row.bytes)} at ${where(row.address)}, ${trace.streamText(row.stream)}`];
  const fills = [...[...HUES, null].map((_, group) => css(coloured(group))), css(palette().dim[0])];
  const shown = box.firstChild ? box.firstChild.shown : FEW;
  box.replaceChildren(rowsBox(`${trace.name}, ${state.moment < 0 ? 'at the peak, ' : ''}${trace.when(at)}`, figures, rows, 'segment', fills, (part) => (trace.match[part.block] ? Math.min(trace.group[part.block], SHOWN) : SHOWN + 1), lines, shown, (part) => choose(part.block ?? -1, at)));
  box.firstChild.draw();
}

/** A canvas with a row for each piece of memory. `fill` is the number of a part's colour; space without a part is free. */
function rowsBox(title, figures, rows, what, colours, fill, lines, few = FEW, pick = null) {
  const canvas = el('canvas'), more = el('button', { className: 'more' });
  let most = 1;
  const box = el('div', { className: 'pool' }, el('h3', {}, title), el('p', {}, figures.join(' \u00b7 ')), canvas, more);
  box.shown = Math.min(rows.length, few);
  box.draw = () => {
    more.hidden = box.shown === Math.min(rows.length, TALL);
    more.textContent = rows.length > TALL ? `Show ${count(TALL)} of ${counted(rows.length, what)}` : `Show all ${counted(rows.length, what)}`;
    canvas.style.height = `${box.shown * ROW}px`;
    if (!box.shown) return;
    most = rows.slice(0, box.shown).reduce((largest, row) => Math.max(largest, row.bytes), 1);
    const { context, width } = fit(canvas), wide = Math.floor(width - LEFT - RIGHT), fills = colours.map((name) => (name.startsWith('--') ? colour(name.slice(2)) : name)), gap = colour('card');
    rows.slice(0, box.shown).forEach((row, at) => {
      const y = at * ROW, cover = new Float64Array(wide * fills.length), scale = wide / most;
      context.textAlign = 'right';
      context.textBaseline = 'middle';
      context.fillStyle = colour('muted');
      context.fillText(row.label, LEFT - 7, y + BARS / 2);
      context.fillStyle = colour('free');
      context.fillRect(LEFT, y, Math.max(1, Math.floor(row.bytes * scale)), BARS);
      for (const part of row.parts) {
        const [from, to, which] = [part.offset * scale, (part.offset + part.bytes) * scale, fill(part)];
        for (let x = Math.floor(from); x < to && x < wide; x++) cover[x * fills.length + which] += Math.min(to, x + 1) - Math.max(from, x);
      }
      // A pixel has the colour with most bytes in it, or that of free memory.
      for (let x = 0; x < wide; x++) {
        const values = cover.subarray(x * fills.length, (x + 1) * fills.length);
        let best = 0, sum = 0;
        for (let each = 0; each < values.length; each++) { sum += values[each]; if (values[each] > values[best]) best = each; }
        if (values[best] <= 0 || values[best] < Math.min(1, row.bytes * scale - x) - sum) continue;
        context.fillStyle = fills[best];
        context.fillRect(LEFT + x, y, 1, BARS);
      }
      context.fillStyle = gap;
      for (const part of row.parts) if (part.bytes * scale >= 4) context.fillRect(LEFT + Math.round((part.offset + part.bytes) * scale) - 1, y, 1, BARS);
    });
    const part = (event) => {
      const frame = canvas.getBoundingClientRect(), row = rows[Math.floor((event.clientY - frame.top) / ROW)];
      const offset = ((event.clientX - frame.left - LEFT) / wide) * most;
      if (!row || offset < 0 || offset >= row.bytes) return [];
      const next = row.parts.findIndex((each) => offset < each.offset + each.bytes), found = row.parts[next];
      if (found && offset >= found.offset) return [row, found];
      const before = next < 0 ? row.parts[row.parts.length - 1] : row.parts[next - 1], start = before ? before.offset + before.bytes : 0;
      return [row, { offset: start, bytes: (found ? found.offset : row.bytes) - start, state: 'free' }];
    };
    canvas.onmousemove = (event) => {
      const [row, found] = part(event);
      tip(event, row && lines(row, found));
    };
    canvas.onclick = pick && ((event) => {
      const [row, found] = part(event);
      if (row) pick(found);
    });
    canvas.onmouseleave = () => tip();
  };
  more.onclick = () => { box.shown = Math.min(rows.length, TALL); box.draw(); };
  return box;
}

// Tables.

const LIMIT = 8, MOST = 1000; // rows

function table(box, heads, rows, none, limit = LIMIT) {
  if (!rows.length) return box.replaceChildren(el('p', { className: 'empty' }, none));
  const body = el('tbody', {}, ...rows.slice(0, limit).map((row) => row()));
  const kind = (head) => (head.startsWith('#') ? 'n' : head === '' ? 'bar-cell' : '');
  box.replaceChildren(el('table', {}, el('thead', {}, el('tr', {}, ...heads.map((head) => el('th', { className: kind(head) }, head.replace('#', ''))))), body));
  if (rows.length > limit) {
    const more = el('button', { className: 'more' }, rows.length > MOST ? `Show ${count(MOST)} of ${count(rows.length)}` : `Show all ${count(rows.length)}`);
    more.onclick = () => table(box, heads, rows, none, MOST);
    box.append(more);
  }
}

const cell = (...children) => el('td', {}, ...children);
const figure = (text) => el('td', { className: 'n' }, text);
const meter = (part, fill) => cell(el('div', { className: 'meter' }, el('i', { style: { width: `${100 * Math.min(1, part)}%`, background: fill || '' } })));
const matches = (...texts) => state.words === '' || texts.some((text) => text && text.toLowerCase().includes(state.words));

/** Sums of what `each` yields, [key, bytes, item], largest first. */
function sums(each) {
  const known = new Map();
  for (const [key, bytes, item] of each) {
    const sum = known.get(key);
    if (sum) { sum.blocks++; sum.bytes += bytes; } else known.set(key, { key, blocks: 1, bytes, item });
  }
  return [...known.values()].sort((a, b) => b.bytes - a.bytes);
}

function holders() {
  const trace = state.trace;
  let all, fill = () => '';
  if (trace) {
    const at = state.moment < 0 ? trace.peak : state.moment;
    $('moment').textContent = `by ${$('group').selectedOptions[0].textContent}, at ${state.moment < 0 ? 'the peak, ' : ''}${trace.when(at)}: ${size(trace.total[at] || 0)} live`;
    all = sums((function* () { for (let i = 0; i < trace.n; i++) if (trace.match[i] && trace.isLive(i, at)) yield [trace.group[i], trace.bytes[i], i]; })());
    for (const sum of all) [sum.group, sum.key] = [sum.key, trace.groups[sum.key].key];
    fill = (sum) => css(coloured(sum.group));
  } else {
    $('moment').textContent = 'by name, of the tracked live blocks';
    const leaks = data.trackers.flatMap((tracker) => tracker.leaks).filter((leak) => matches(leak.name, leak.place, leak.backtrace));
    all = sums(leaks.map((leak) => [leak.name ?? leak.place ?? 'unknown line', leak.bytes, leak]));
  }
  const whole = all.reduce((sum, each) => sum + each.bytes, 0);
  facts.holders = all.length;
  const searched = ['place', 'name'].includes($('group').value);
  table($('holders').querySelector('.table'), ['Holder', '#Blocks', '#Bytes', '#Share', ''], all.map((sum) => () =>
    el('tr', { className: searched ? 'pick' : '', title: searched ? 'search for it' : '', onclick: searched ? () => { $('search').value = sum.key; search(); } : null }, cell(sum.key), figure(count(sum.blocks)), figure(size(sum.bytes)), figure(percent(ratio(sum.bytes, whole))), meter(ratio(sum.bytes, whole), fill(sum)))), state.words ? 'No live block matches.' : 'No live block.');
}

function ends() {
  const all = [];
  for (const tracker of data.trackers) {
    for (const leak of tracker.leaks) {
      if (matches(leak.name, leak.place, leak.backtrace, where(leak.address))) {
        const title = leak.name ?? leak.place;
        all.push({ key: JSON.stringify([tracker.name, title ?? leak.bytes]), memory: tracker.name, title, line: leak.name && leak.place, bytes: leak.bytes, oldest: duration(leak.age_ns), age: leak.age_ns, stack: leak.backtrace });
      }
    }
  }
  facts.tracked = data.trackers.reduce((sum, tracker) => sum + tracker.leaks.length, 0);
  [facts.unfreed, facts.unfreedBytes] = [0, 0];
  const trace = state.trace;
  // A tracker and a trace of one name are of one memory: each block is listed once.
  const isTracked = trace && data.trackers.some((tracker) => tracker.name === trace.name);
  for (let i = 0; trace && i < trace.n; i++) {
    if (trace.end[i] < trace.events) continue;
    facts.unfreed++;
    facts.unfreedBytes = Number(facts.unfreedBytes) + trace.bytes[i];
    if (isTracked || !trace.match[i]) continue;
    const oldest = i < trace.before ? 'before' : `event ${count(trace.begin[i] + 1)}`;
    all.push({ key: trace.group[i], memory: trace.name, title: trace.groups[trace.group[i]].key, line: null, bytes: trace.bytes[i], oldest, age: trace.events - trace.begin[i], stack: null });
  }
  all.sort((a, b) => b.age - a.age); // a group shows its oldest block
  const groups = sums(all.map((block) => [block.key, block.bytes, block]));
  const whole = all.reduce((sum, block) => sum + block.bytes, 0);
  facts.endBytes = whole;
  $('end-sum').textContent = `${counted(all.length, 'block')}, ${size(whole)}: ${data.trackers.length ? 'live when the snapshot was taken' : 'not freed when the recording ended'}`;
  table($('ends').querySelector('.table'), [trace && !isTracked ? 'Group' : 'Block', '#Blocks', '#Bytes', '#Oldest'], groups.map((sum) => () => {
    const { memory, title, line, bytes, oldest, stack } = sum.item, unnamed = sum.blocks > 1 ? `blocks of ${size(bytes)}` : `a block of ${size(bytes)}`;
    return el('tr', {}, cell(title ?? unnamed, ' ', el('small', {}, [line, data.trackers.length > 1 && `in ${memory}`].filter(Boolean).join(', ')),
      stack ? el('details', {}, el('summary', {}, 'backtrace'), el('pre', {}, stack)) : null), figure(count(sum.blocks)), figure(size(sum.bytes)), el('td', { className: 'n' }, el('small', {}, oldest)));
  }), state.words ? 'No live block matches.' : 'Every block was freed.');
}

function buffers() {
  const rows = [];
  for (const manager of data.managers) {
    for (const b of [...manager.buffers].sort((one, other) => other.capacity_bytes - one.capacity_bytes)) {
      if (!matches(b.name, b.element)) continue;
      rows.push(() => el('tr', {}, cell(b.name, ' ', el('small', {}, `${b.element}, in ${manager.name}`)), figure(size(b.used_bytes)), figure(size(b.capacity_bytes)), figure(count(b.resizes)),
        figure(duration(b.idle_ns)), meter(ratio(b.used_bytes, b.capacity_bytes))));
    }
  }
  facts.buffers = rows.length;
  $('buffers').hidden = !data.managers.length;
  const box = $('buffers').querySelector('.table');
  table(box, ['Buffer', '#Used', '#Capacity', '#Resizes', '#Idle', ''], rows, 'No buffer.');
  for (const manager of data.managers) box.append(el('p', { className: 'empty' }, `${manager.name}: ${size(manager.used_bytes)} in use, peak ${size(manager.peak_bytes)}, limit ${manager.limit_bytes >= 2 ** 63 ? 'none' : size(manager.limit_bytes)}, ${counted(Math.max(0, manager.created + manager.registered - manager.released - manager.buffers.length), 'registered buffer')}, ${counted(manager.leases, 'lease')}, ${count(manager.released - manager.freed)} freed but leased`));
}

// Controls.

/** Finds the blocks of the words. */
function find() {
  state.words = $('search').value.trim().toLowerCase();
  const blocks = traces.reduce((sum, trace) => sum + trace.n, 0), found = traces.reduce((sum, trace) => sum + trace.find(state.words), 0);
  facts.found = found;
  $('found').value = state.words ? `${count(found)} of ${counted(blocks, 'block')}` : '';
}

/** Chooses the block of an address, if there is one. */
function chooseFound() {
  const only = state.trace && Number(facts.found) === 1 && state.words.startsWith('0x') ? state.trace.match.indexOf(1) : -1;
  if (only >= 0 && only !== state.chosen) choose(only, state.trace.isLive(only, state.moment) ? state.moment : state.trace.begin[only]);
}

function search() {
  find();
  chooseFound();
  remember();
  redraw();
  holders();
  ends();
  layouts();
  buffers();
}

function group() {
  state.group = $('group').value;
  state.trace?.regroup(state.group);
  remember();
  if (state.trace) { redraw(); legend(); }
  holders();
  ends();
  layouts();
  head();
}

function whole() {
  if (!state.trace) return;
  [state.from, state.to] = extent();
  redraw();
}

function axis() {
  state.axis = $('axis').value;
  remember();
  whole();
}

function stack() {
  state.stack = $('stack').value;
  state.trace.restack();
  remember();
  redraw();
}

function options(select, entries, chosen) {
  select.replaceChildren();
  for (const [value, text] of entries) select.append(el('option', { value }, text));
  if (entries.some(([value]) => value === chosen)) select.value = chosen;
}

function setTrace() {
  const trace = (state.trace = traces[Number($('trace').value)]);
  const moment = wantedNumber('moment') ?? 0;
  wanted.delete('moment'); // of the first trace
  [state.moment, state.chosen] = [Math.min(moment, trace.events) - 1, -1];
  $('selected').hidden = true;
  $('timeline-name').textContent = `Memory of ${trace.name} by allocation`;
  const { refused } = trace;
  $('refusal').hidden = !refused.length;
  $('refusal').textContent = `${counted(refused.length, 'refused request')}`;
  $('timeline-end').textContent = trace.events ? `${size(trace.total[trace.events - 1])} live at the end` : '';
  const recorded = (column) => column.some((index) => index >= 0);
  const modes = [['name', 'name', recorded(trace.label)], ['place', 'source line', recorded(trace.stack)], ['stack', 'stack', trace.stack.some((stack) => stack >= 0 && data.stacks[stack].length > 1)],
    ['stream', 'stream', recorded(trace.stream)], ['size', 'size', true]];
  const usable = modes.filter(([, , usable]) => usable);
  options($('group'), usable, wanted.get('group') ?? (usable[0][0] === 'stream' ? 'size' : usable[0][0]));
  options($('axis'), trace.times && trace.events ? [['event', 'events'], ['time', 'time']] : [['event', 'events']], wanted.get('axis') ?? 'event');
  state.axis = $('axis').value;
  [state.from, state.to] = extent();
  let live = 0;
  for (let i = 0; i < trace.n; i++) live += trace.isLive(i, trace.peak);
  $('stack').value = wanted.get('stack') === 'age' || (live < MANY && wanted.get('stack') !== 'group') ? 'age' : 'group';
  state.stack = $('stack').value;
  group();
}

function listen() {
  const overlay = $('over');
  let drag = null;
  overlay.addEventListener('wheel', (event) => {
    event.preventDefault();
    const at = Math.min(1, Math.max(0, (under(event).x - LEFT) / (overlay.clientWidth - LEFT - RIGHT)));
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(state.from + event.deltaX * (state.to - state.from) / 800, state.to + event.deltaX * (state.to - state.from) / 800);
    else zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) / 300), at);
  }, { passive: false });
  overlay.addEventListener('pointerdown', (event) => {
    drag = { x: event.clientX, from: state.from, to: state.to, moved: false };
    overlay.setPointerCapture(event.pointerId);
  });
  overlay.addEventListener('pointermove', (event) => {
    if (drag && (drag.moved ||= Math.abs(event.clientX - drag.x) > 3)) {
      const by = ((event.clientX - drag.x) / (overlay.clientWidth - LEFT - RIGHT)) * (drag.to - drag.from);
      tip();
      return pan(drag.from - by, drag.to - by);
    }
    const { x, block, moment } = under(event);
    over(block, x);
    const lines = [`${size(state.trace.total[moment] ?? 0)} live${state.trace.reserved ? ` of ${size(state.trace.reserved[moment] ?? 0)} reserved` : ''}`, moment >= 0 ? state.trace.when(moment) : null];
    const refused = block < 0 ? refusedAt(moment) : null;
    tip(event, refused ? refused.lines : block >= 0 ? [...state.trace.describe(block), ...lines, state.trace.stack[block] >= 0 && 'click for the stack'] : moment >= 0 ? lines : null);
  });
  overlay.addEventListener('pointerup', (event) => {
    const { block, moment } = under(event);
    if (drag && !drag.moved) choose(block, moment);
    drag = null;
  });
  overlay.addEventListener('pointerleave', () => { tip(); over(-1); });
  overlay.addEventListener('dblclick', whole);
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || ['INPUT', 'SELECT'].includes(event.target.tagName)) return;
    const span = (state.to - state.from) / 8;
    const at = state.moment < 0 ? state.trace.peak : state.moment;
    const act = { p: () => go(state.trace.peak), f: refusal, '[': () => go(at - 1), ']': () => go(at + 1), Home: () => go(0), End: () => go(state.trace.events - 1), '+': () => zoom(0.6), '=': () => zoom(0.6), '-': () => zoom(1 / 0.6), 0: whole, ArrowLeft: () => pan(state.from - span, state.to - span), ArrowRight: () => pan(state.from + span, state.to + span) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  $('in').onclick = () => zoom(0.6);
  $('out').onclick = () => zoom(1 / 0.6);
  $('all').onclick = whole;
  $('peak').onclick = () => go(state.trace.peak);
  $('refusal').onclick = refusal;
  $('group').onchange = group;
  $('axis').onchange = axis;
  $('stack').onchange = stack;
  $('trace').onchange = setTrace;
  $('pool').onchange = curve;
  $('search').oninput = search;
}

/** Figures of the trace that is shown, or of the trackers. */
function head() {
  const trace = state.trace, slabs = data.pools.reduce((sum, pool) => sum + pool.slabs.length, 0), blocks = Number(facts.tracked) || Number(facts.unfreed);
  const peak = trace ? trace.total[trace.peak] ?? 0 : Math.max(0, ...data.trackers.map((tracker) => tracker.peak_bytes));
  const pairs = [data.pools.length && ['pools', count(data.pools.length)], data.pools.length && ['slabs', count(slabs)], ['events', count(trace ? trace.events : 0)], ['peak', size(peak)], ['live at the end', counted(blocks, 'block')]];
  $('facts').replaceChildren(...pairs.filter(Boolean).map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value))));
}

function start() {
  document.title = `${data.source} - ringmem view`;
  $('source').textContent = data.source;
  const slabCount = data.pools.reduce((sum, pool) => sum + pool.slabs.length, 0), events = traces.reduce((sum, trace) => sum + trace.events, 0);
  Object.assign(facts, { pools: data.pools.length, slabs: slabCount, events, allocations: traces.reduce((sum, trace) => sum + trace.n, 0) });
  facts.parts = data.pools.reduce((sum, pool) => sum + pool.slabs.reduce((parts, slab) => parts + slab.parts.length, 0), 0);
  options($('trace'), traces.map((trace, at) => [String(at), trace.name]), wanted.get('trace'));
  $('trace-label').hidden = traces.length < 2;
  const curves = [...sampled.keys()].map((name) => [name, name]);
  if (traces.some((trace) => trace.reserved)) curves.push(['', 'the trace']);
  options($('pool'), curves);
  $('pool-label').hidden = curves.length < 2;
  $('search').value = wanted.get('search') ?? '';
  find();
  // Without samples, a snapshot of pools tells how to get them.
  $('fragmentation').hidden = !sampled.size && !data.pools.length && !traces.some((trace) => trace.reserved);
  if (traces.length) {
    listen();
    setTrace();
  } else {
    $('timeline').hidden = true;
    options($('group'), [['place', 'source line']]);
    redraw();
    holders();
    ends();
    layouts();
    head();
  }
  buffers();
  slabs();
  const chosen = wantedNumber('block') ?? -1;
  if (state.trace && chosen >= 0 && chosen < state.trace.n) choose(chosen, state.moment >= 0 ? state.moment : state.trace.begin[chosen]);
  else if (state.moment >= 0) choose(-1, state.moment);
  else chooseFound();
  const again = () => { later(); slabs(); layouts(); if (state.trace) legend(); };
  addEventListener('resize', again);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', again);
  facts.ready = 'yes';
}

start();
