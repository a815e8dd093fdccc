'use strict';
// Draws the snapshot in #data. Every text of it becomes a text node, never markup. Figures about the page are in the data attributes of body.
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
  return `${Number.isInteger(bytes) ? bytes : bytes.toFixed(bytes < 10 ? 2 : 1)} ${units[unit]}`;
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
const where = (address) => (address === null ? 'an unknown address' : typeof address === 'bigint' ? `0x${address.toString(16)}` : address);
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
const MANY = 200; // live blocks at the peak from which single bands are too thin to follow
const HUES = [212, 28, 145, 282, 352, 186, 48, 100, 322];

class Trace {
  constructor(raw) {
    Object.assign(this, raw);
    this.n = raw.begin.length;
    this.begin = Int32Array.from(raw.begin);
    this.end = Int32Array.from(raw.end, (end) => (end < 0 ? raw.events : end));
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
    this.base = raw.times && raw.events ? raw.times[0] : 0;
    this.times = raw.times && raw.times.map((time) => time - this.base);
  }

  /** The number of events until a time of the snapshot. */
  until(time) { return above(this.times, time - this.base); }

  isLive(i, at) { return this.begin[i] <= at && this.end[i] > at; }
  text(index) { return index < 0 ? null : this.texts[index]; }

  /** The group of a block, as text. */
  key(i, mode) {
    switch (mode) {
      case 'place': return this.text(this.place[i]) ?? this.text(this.label[i]) ?? 'unknown line';
      case 'name': return this.text(this.label[i]) ?? 'no name';
      case 'stream': return this.stream[i] === null ? 'no stream' : `stream ${this.stream[i]}`;
      default: return this.bytes[i] > 0 ? `up to ${size(2 ** Math.ceil(Math.log2(this.bytes[i])))}` : '0 B';
    }
  }

  /** Numbers the groups, those with most live bytes at the peak first. */
  regroup(mode) {
    const known = new Map(), sums = [], raw = new Int32Array(this.n);
    for (let i = 0; i < this.n; i++) {
      const key = this.key(i, mode);
      let number = known.get(key);
      if (number === undefined) { known.set(key, (number = sums.length)); sums.push({ key, peak: 0, bytes: 0 }); }
      raw[i] = number;
      sums[number].bytes += this.bytes[i];
      if (this.isLive(i, this.peak)) sums[number].peak += this.bytes[i];
    }
    const order = sums.map((_, number) => number).sort((a, b) => sums[b].peak - sums[a].peak || sums[b].bytes - sums[a].bytes);
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
    const cache = new Map(), block = Number(words), address = /^0x[0-9a-f]{1,16}$/.test(words) ? BigInt(words) : null;
    const has = (index) => {
      if (index < 0) return false;
      if (!cache.has(index)) cache.set(index, this.texts[index].toLowerCase().includes(words));
      return cache.get(index);
    };
    let found = 0;
    for (let i = 0; i < this.n; i++) {
      const at = this.address[i];
      const hit = words === '' || has(this.label[i]) || has(this.place[i]) || has(this.backtrace[i]) || this.block[i] === block ||
        (at !== null && address !== null && address >= BigInt(at) && address < BigInt(at) + BigInt(Math.max(this.bytes[i], 1)));
      this.match[i] = hit ? 1 : 0;
      found += this.match[i];
    }
    return found;
  }

  when(at) {
    return `event ${count(at)}` + (this.times && at < this.events ? `, ${duration(this.times[at])}` : '');
  }

  describe(i) {
    const name = this.text(this.label[i]) ?? this.text(this.place[i]) ?? `block ${this.block[i]}`;
    const life = this.times && this.end[i] < this.events ? `, lived ${duration(this.times[this.end[i]] - this.times[this.begin[i]])}` : '';
    return [
      `${name}: ${size(this.bytes[i])}`,
      this.text(this.place[i]) ? `allocated by ${this.text(this.place[i])}` : 'source line not recorded',
      `block ${this.block[i]} (${count(this.bytes[i])} bytes) at ${where(this.address[i])}, ${this.stream[i] === null ? 'no stream' : `stream ${this.stream[i]}`}`,
      `allocated at ${this.when(this.begin[i])}; ${this.end[i] < this.events ? `freed at ${this.when(this.end[i])}${life}` : 'not freed'}`,
    ];
  }
}

// State.

const traces = data.traces.map((raw) => new Trace(raw));
const sampled = new Map();
for (const sample of data.samples.sort((a, b) => a.time_ns - b.time_ns)) {
  if (!sampled.has(sample.pool)) sampled.set(sample.pool, []);
  sampled.get(sample.pool).push(sample);
}
const wanted = new URLSearchParams(location.hash.slice(1));
const state = { trace: null, group: 'size', stack: 'age', axis: 'event', from: 0, to: 1, moment: -1, chosen: -1, words: '' };

function remember() {
  const hash = new URLSearchParams();
  for (const [name, value] of [['search', state.words], ['block', state.chosen < 0 ? '' : String(state.trace.block[state.chosen])], ['trace', traces.length > 1 ? $('trace').value : ''], ['group', state.group], ['stack', state.stack], ['axis', state.axis]]) if (value) hash.set(name, value);
  try { history.replaceState(null, '', `#${hash}`); } catch { /* some browsers refuse it for files */ }
}

function extent() {
  const trace = state.trace;
  if (state.axis === 'time') return [0, Math.max(trace.times[trace.events - 1] * (1 + 1e-9), 1)];
  return [0, Math.max(trace.events, 1)];
}

/** The number of events before a place on the axis. */
const before = (x) => (state.axis === 'time' ? first(state.trace.times, (time) => time >= x) : Math.max(0, Math.ceil(x)));
const place = (at) => (state.axis === 'time' ? state.trace.times[Math.min(at, state.trace.events - 1)] : at);

// The timeline. Each pixel column shows the state with most live bytes in its events. Bands are found by a prefix sum over the live blocks
// (a Fenwick tree), so a redraw takes a time that depends on pixels and on events in view, not on the number of live blocks.

const LEFT = 76, RIGHT = 10, TOP = 6, BOTTOM = 20;
const plot = { width: 0, height: 0, scale: 1, ids: new Int32Array(0), columns: new Int32Array(0), most: 1 };

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
  groups.push(shades(215, 0.08, dark ? 0.42 : 0.66));
  return { groups, dim: shades(215, 0.08, dark ? 0.17 : 0.92), edge: pixel(215, 0.2, dark ? 0.08 : 0.98) };
}
const coloured = (group) => palette().groups[Math.min(group, SHOWN)][0];

function bands() {
  const trace = state.trace, canvas = $('bands');
  const { context, width, height, scale } = fit(canvas);
  // A frame that is not shown has no height: a canvas needs a pixel, and the resize when it is shown draws again.
  const [w, h] = [width - LEFT - RIGHT, height - TOP - BOTTOM].map((length) => Math.max(1, Math.floor(length * scale)));
  const step = (state.to - state.from) / w, columns = new Int32Array(w);
  let most = 0, drawn = 0, painted = 0;
  for (let c = 0, next = before(state.from); c < w; c++) {
    const start = next;
    next = Math.min(c + 1 === w ? before(state.to) : before(state.from + (c + 1) * step), trace.events);
    let best = next > start ? start : start - 1;
    for (let at = start + 1; at < next; at++) if (trace.total[at] > trace.total[best]) best = at;
    drawn += Math.max(0, next - start);
    columns[c] = best;
    if (best >= 0) most = Math.max(most, trace.total[best]);
  }
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
    for (; now < columns[c]; now++) {
      if (trace.starts[now + 1] >= 0) add(trace.starts[now + 1], trace.bytes[trace.starts[now + 1]]);
      if (trace.ends[now + 1] >= 0) add(trace.ends[now + 1], -trace.bytes[trace.ends[now + 1]]);
    }
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
  Object.assign(plot, { width: w, height: h, scale, ids, columns, most });
  [facts.eventsDrawn, facts.painted] = [drawn, painted];
  yAxis(context, width, height, most);
  xAxis(context, width, height);
  for (const [at] of trace.refused) {
    const x = LEFT + ((place(at) - state.from) / (state.to - state.from)) * (width - LEFT - RIGHT);
    if (x < LEFT || x > width - RIGHT) continue;
    context.fillStyle = colour('bad');
    context.beginPath();
    context.moveTo(x - 4, TOP - 5); context.lineTo(x + 4, TOP - 5); context.lineTo(x, TOP + 4);
    context.fill();
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
  const [origin] = extent(), span = state.to - state.from;
  let step = 10 ** Math.floor(Math.log10(span / 6));
  for (const factor of [2, 2.5, 2]) if (span / step > 10) step *= factor;
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
  const box = $('selected');
  box.hidden = block < 0;
  if (block >= 0) {
    const backtrace = trace.text(trace.backtrace[block]);
    box.replaceChildren(...trace.describe(block).map((line, at) => el(at === 0 ? 'b' : 'div', {}, line)), backtrace ? el('pre', {}, backtrace) : '');
  }
  remember();
  over(-1);
  holders();
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

function legend() {
  const trace = state.trace, groups = trace.groups.slice(0, SHOWN), rest = trace.groups.slice(SHOWN);
  const item = (at, text, bytes) =>
    el('span', { title: text }, el('i', { className: 'swatch', style: { background: css(coloured(at)) } }), el('b', {}, el('bdi', {}, text)), bytes > 0 ? el('small', { title: 'live at the peak' }, size(bytes)) : null);
  const items = groups.map((group, at) => item(at, group.key, group.peak));
  if (rest.length) items.push(item(SHOWN, `${counted(rest.length, 'other group')}`, rest.reduce((sum, group) => sum + group.peak, 0)));
  if (trace.refused.length) items.push(el('span', {}, el('b', { style: { color: colour('bad') } }, '\u25bc'), counted(trace.refused.length, 'failed allocation')));
  $('legend').replaceChildren(...items);
}

// Fragmentation over time, on the same axis.

function curve() {
  const samples = sampled.get($('pool').value);
  const { context, width, height } = fit($('curve'));
  facts.samples = samples ? samples.length : 0;
  if (!samples) {
    context.fillStyle = colour('muted');
    context.textBaseline = 'middle';
    return context.fillText('No samples. Call Snapshot::sample now and then, or use ringmem replay --snapshot.', 8, height / 2);
  }
  const trace = state.trace, shared = trace && trace.times;
  const begun = samples[0].time_ns, ended = Math.max(samples[samples.length - 1].time_ns, begun + 1);
  const at = (sample) => {
    if (!shared) return (sample.time_ns - begun) / (ended - begun);
    const x = state.axis === 'time' ? sample.time_ns - trace.base : trace.until(sample.time_ns);
    return (x - state.from) / (state.to - state.from);
  };
  const bottom = height - 8, tall = bottom - TOP;
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  for (const part of [0, 0.5, 1]) {
    context.fillStyle = colour('grid');
    context.fillRect(LEFT, Math.round(bottom - part * tall), width - LEFT - RIGHT, 1);
    context.fillStyle = colour('muted');
    context.fillText(`${100 * part} %`, LEFT - 7, bottom - part * tall);
  }
  context.save();
  context.beginPath();
  context.rect(LEFT, 0, width - LEFT - RIGHT, height);
  context.clip();
  const line = (value, style, dashes, thick) => {
    context.setLineDash(dashes);
    context.strokeStyle = style;
    context.lineWidth = thick;
    context.beginPath();
    for (const sample of samples) context.lineTo(LEFT + at(sample) * (width - LEFT - RIGHT), bottom - value(sample.statistics) * tall);
    context.stroke();
  };
  line((s) => ratio(s.held_bytes, s.reserved_bytes), colour('muted'), [4, 3], 1);
  line(fragmentation, colour('accent'), [], 1.6);
  context.restore();
  $('curve').onmousemove = (event) => {
    const x = (event.clientX - $('curve').getBoundingClientRect().left - LEFT) / (width - LEFT - RIGHT);
    let best = samples[0];
    for (const sample of samples) if (Math.abs(at(sample) - x) < Math.abs(at(best) - x)) best = sample;
    const s = best.statistics;
    tip(event, [`Fragmentation ${percent(fragmentation(s))}`, `${size(s.held_bytes)} live, ${size(s.cached_bytes)} cached, ${size(s.free_bytes)} free of ${size(s.reserved_bytes)} reserved`,
      `largest free piece ${size(Math.max(s.largest_free, s.largest_cached))}`, trace && shared ? `after ${counted(trace.until(best.time_ns), 'event')}` : duration(best.time_ns - begun)]);
  };
  $('curve').onmouseleave = () => tip();
}

// Slabs, to scale.

const STATES = ['live', 'cached', 'pending', 'free'];
const ROW = 20, BARS = 15, FEW = 12;

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
  $('states').replaceChildren(...STATES.flatMap((name) => [el('i', { className: 'swatch', style: { background: `var(--${name})` } }), name]));
  $('pools').replaceChildren(...data.pools.map(poolBox));
  if (!data.pools.length) $('pools').append(el('p', { className: 'empty' }, 'The snapshot has no pool.'));
  for (const box of $('pools').children) if (box.draw) box.draw();
}

function poolBox(pool) {
  const s = pool.statistics, sums = Object.fromEntries(STATES.map((name) => [name, 0]));
  for (const slab of pool.slabs) for (const part of slab.parts) sums[part.state] += part.bytes;
  const canvas = el('canvas'), more = el('button', { className: 'more' }), most = pool.slabs.reduce((largest, slab) => Math.max(largest, slab.bytes), 1);
  const figures = [counted(pool.slabs.length, 'slab'), `${size(s.reserved_bytes)} reserved (peak ${size(s.reserved_peak)})`, ...STATES.map((name) => `${size(sums[name])} ${name}`),
    `fragmentation ${percent(fragmentation(s))}`, `hits ${percent(ratio(s.hits, s.hits + s.misses))}`];
  const box = el('div', { className: 'pool' }, el('h3', {}, pool.name), el('p', {}, figures.join(' \u00b7 ')), canvas, more);
  let shown = Math.min(pool.slabs.length, FEW), known = null;
  box.draw = () => {
    more.hidden = shown === pool.slabs.length;
    more.textContent = `Show all ${count(pool.slabs.length)} slabs`;
    canvas.style.height = `${shown * ROW}px`;
    if (!shown) return;
    const { context, width } = fit(canvas), wide = Math.floor(width - LEFT - RIGHT), fills = STATES.map(colour), gap = colour('card');
    pool.slabs.slice(0, shown).forEach((slab, row) => {
      const y = row * ROW, cover = new Float64Array(wide * STATES.length), scale = wide / most;
      context.textAlign = 'right';
      context.textBaseline = 'middle';
      context.fillStyle = colour('muted');
      context.fillText(`slab ${slab.number}`, LEFT - 7, y + BARS / 2);
      for (const part of slab.parts) {
        const [from, to, which] = [part.offset * scale, (part.offset + part.bytes) * scale, STATES.indexOf(part.state)];
        for (let x = Math.floor(from); x < to && x < wide; x++) cover[x * STATES.length + which] += Math.min(to, x + 1) - Math.max(from, x);
      }
      // A pixel has the colour of the state with most bytes in it.
      for (let x = 0; x < wide; x++) {
        const at = cover.subarray(x * STATES.length, (x + 1) * STATES.length), largest = Math.max(...at);
        if (largest <= 0) continue;
        context.fillStyle = fills[at.indexOf(largest)];
        context.fillRect(LEFT + x, y, 1, BARS);
      }
      context.fillStyle = gap;
      for (const part of slab.parts) if (part.bytes * scale >= 4) context.fillRect(LEFT + Math.round((part.offset + part.bytes) * scale) - 1, y, 1, BARS);
    });
    canvas.onmousemove = (event) => {
      const frame = canvas.getBoundingClientRect(), slab = pool.slabs[Math.floor((event.clientY - frame.top) / ROW)];
      const offset = ((event.clientX - frame.left - LEFT) / wide) * most;
      const part = slab && slab.parts.find((each) => offset >= each.offset && offset < each.offset + each.bytes);
      if (!part) return tip();
      const address = slab.address === null ? null : BigInt(slab.address) + BigInt(part.offset);
      known ??= owners(pool);
      const owner = address === null || part.state !== 'live' ? null : known[first(known, (each) => each.address >= address + BigInt(part.bytes)) - 1];
      const lines = owner && owner.address >= address ? owner.lines : [];
      tip(event, [`${size(part.bytes)} ${part.state}`, `slab ${slab.number}, offset ${count(part.offset)}, ${where(address)}`, ...lines]);
    };
    canvas.onmouseleave = () => tip();
  };
  more.onclick = () => { shown = pool.slabs.length; box.draw(); };
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
    $('moment').textContent = 'by source line, of the tracked live blocks';
    const leaks = data.trackers.flatMap((tracker) => tracker.leaks).filter((leak) => matches(leak.name, leak.place, leak.backtrace));
    all = sums(leaks.map((leak) => [leak.place ?? leak.name ?? 'unknown line', leak.bytes, leak]));
  }
  const whole = all.reduce((sum, each) => sum + each.bytes, 0);
  facts.holders = all.length;
  const searched = ['place', 'name'].includes($('group').value);
  table($('holders').querySelector('.table'), ['Holder', '#Blocks', '#Bytes', '#Share', ''], all.map((sum) => () =>
    el('tr', { className: searched ? 'pick' : '', title: searched ? 'search for it' : '', onclick: searched ? () => { $('search').value = sum.key; search(); } : null }, cell(sum.key), figure(count(sum.blocks)), figure(size(sum.bytes)), figure(percent(ratio(sum.bytes, whole))), meter(ratio(sum.bytes, all[0].bytes), fill(sum)))), 'No live block.');
}

function leaks() {
  const all = [];
  for (const tracker of data.trackers) {
    for (const leak of tracker.leaks) {
      if (matches(leak.name, leak.place, leak.backtrace, where(leak.address))) {
        all.push([tracker.name, leak.name, leak.place, leak.bytes, `${duration(leak.age_ns)} old`, leak.backtrace, leak.age_ns]);
      }
    }
  }
  facts.leaks = data.trackers.reduce((sum, tracker) => sum + tracker.leaks.length, 0);
  facts.unfreed = 0;
  const tracked = new Set(data.trackers.map((tracker) => tracker.name));
  for (const trace of traces) {
    for (let i = 0; i < trace.n; i++) {
      if (trace.end[i] < trace.events) continue;
      facts.unfreed++;
      // A tracker and a trace of one name are of one memory: each block is listed once.
      if (tracked.has(trace.name)) continue;
      if (trace.match[i]) all.push([trace.name, trace.text(trace.label[i]), trace.text(trace.place[i]), trace.bytes[i], `event ${count(trace.begin[i])}`, trace.text(trace.backtrace[i]), trace.events - trace.begin[i]]);
    }
  }
  all.sort((a, b) => b[6] - a[6]); // a group shows its oldest block
  const groups = sums(all.map((leak) => [JSON.stringify(leak.slice(0, 3).concat(leak[1] || leak[2] ? [] : [leak[3]])), leak[3], leak]));
  table($('leaks').querySelector('.table'), ['Block', '#Blocks', '#Bytes', '#Oldest'], groups.map((sum) => () => {
    const [memory, name, line, bytes, age, backtrace] = sum.item;
    const title = name ?? line ?? (sum.blocks > 1 ? `blocks of ${size(bytes)}` : `a block of ${size(bytes)}`);
    return el('tr', {}, cell(title, ' ', el('small', {}, [name && line, `in ${memory}`].filter(Boolean).join(', ')),
      backtrace ? el('details', {}, el('summary', {}, 'backtrace'), el('pre', {}, backtrace)) : null), figure(count(sum.blocks)), figure(size(sum.bytes)), el('td', { className: 'n' }, el('small', {}, age)));
  }), state.words ? 'No leak matches.' : 'Every block was freed.');
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

function search() {
  state.words = $('search').value.trim().toLowerCase();
  const blocks = traces.reduce((sum, trace) => sum + trace.n, 0), found = traces.reduce((sum, trace) => sum + trace.find(state.words), 0);
  facts.found = found;
  $('found').value = state.words ? `${count(found)} of ${counted(blocks, 'block')}` : '';
  remember();
  redraw();
  holders();
  leaks();
  buffers();
}

function group() {
  state.group = $('group').value;
  state.trace?.regroup(state.group);
  remember();
  if (state.trace) { redraw(); legend(); }
  holders();
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
  [state.moment, state.chosen] = [-1, -1];
  $('selected').hidden = true;
  const recorded = (column) => column.some((index) => index >= 0);
  const modes = [['place', 'source line'], ['name', 'name'], ['stream', 'stream'], ['size', 'size']];
  const usable = modes.filter(([mode]) => (mode === 'place' ? recorded(trace.place) : mode === 'name' ? recorded(trace.label) : mode === 'stream' ? trace.stream.some((s) => s !== null) : true));
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
    tip(event, block >= 0 ? [...state.trace.describe(block), state.trace.text(state.trace.backtrace[block]) && 'click for the backtrace'] : moment >= 0 ? [`${size(state.trace.total[moment])} live`, state.trace.when(moment)] : null);
  });
  overlay.addEventListener('pointerup', (event) => {
    const { block, moment } = under(event);
    if (drag && !drag.moved) choose(block, moment);
    drag = null;
  });
  overlay.addEventListener('pointerleave', () => { tip(); over(-1); });
  overlay.addEventListener('dblclick', whole);
  overlay.addEventListener('keydown', (event) => {
    const span = (state.to - state.from) / 8;
    const act = { '+': () => zoom(0.6), '=': () => zoom(0.6), '-': () => zoom(1 / 0.6), 0: whole, ArrowLeft: () => pan(state.from - span, state.to - span), ArrowRight: () => pan(state.from + span, state.to + span) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  $('in').onclick = () => zoom(0.6);
  $('out').onclick = () => zoom(1 / 0.6);
  $('all').onclick = whole;
  $('group').onchange = group;
  $('axis').onchange = axis;
  $('stack').onchange = stack;
  $('trace').onchange = setTrace;
  $('pool').onchange = curve;
  $('search').oninput = search;
}

function start() {
  document.title = `${data.source} - ringmem view`;
  $('source').textContent = data.source;
  const slabCount = data.pools.reduce((sum, pool) => sum + pool.slabs.length, 0), events = traces.reduce((sum, trace) => sum + trace.events, 0);
  Object.assign(facts, { pools: data.pools.length, slabs: slabCount, events, allocations: traces.reduce((sum, trace) => sum + trace.n, 0) });
  facts.parts = data.pools.reduce((sum, pool) => sum + pool.slabs.reduce((parts, slab) => parts + slab.parts.length, 0), 0);
  options($('trace'), traces.map((trace, at) => [String(at), trace.name]), wanted.get('trace'));
  $('trace-label').hidden = traces.length < 2;
  options($('pool'), [...sampled.keys()].map((name) => [name, name]));
  $('pool-label').hidden = sampled.size < 2;
  $('search').value = wanted.get('search') ?? '';
  if (traces.length) { listen(); setTrace(); } else { $('timeline').hidden = true; options($('group'), [['place', 'source line']]); }
  $('fragmentation').hidden = !sampled.size && !traces.length;
  search();
  slabs();
  const chosen = state.trace && wanted.has('block') ? state.trace.block.indexOf(Number(wanted.get('block'))) : -1;
  if (chosen >= 0) choose(chosen, state.trace.begin[chosen]);
  const most = Math.max(0, ...traces.map((trace) => trace.total[trace.peak] || 0), ...data.trackers.map((tracker) => tracker.peak_bytes));
  const pairs = [['pools', count(data.pools.length)], ['slabs', count(slabCount)], ['events', count(events)], ['peak', size(most)], ['not freed', count(facts.leaks > 0 ? Number(facts.leaks) : Number(facts.unfreed))]];
  $('facts').replaceChildren(...pairs.map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value))));
  const again = () => { later(); slabs(); if (state.trace) legend(); };
  addEventListener('resize', again);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', again);
  facts.ready = 'yes';
}

start();
