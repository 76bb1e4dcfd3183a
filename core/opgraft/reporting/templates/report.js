"use strict";

const data = JSON.parse(document.getElementById("data").textContent);

/** An element with text in it. Text is never markup: names from a model are put on the screen by this alone. */
function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

/** Control characters made visible, so that a name shows what it is. */
function shown(text) {
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (sign) => {
    const code = sign.codePointAt(0);
    return code <= 0xffff ? "\\u" + code.toString(16).padStart(4, "0") : "\\u{" + code.toString(16) + "}";
  });
}

function sizeText(bytes) {
  if (bytes === null) return "unknown";
  let size = bytes;
  for (const unit of ["bytes", "kB", "MB", "GB"]) {
    if (Math.abs(size) < 1000) return (unit === "bytes" || Math.abs(size) >= 100 ? size.toFixed(0) : size.toFixed(1)) + " " + unit;
    size /= 1000;
  }
  return size.toFixed(1) + " TB";
}

/** The colour of a subgraph: neighbours in number are far apart in hue. */
function colourOf(subgraph) {
  const hue = (210 + subgraph * 137.508) % 360;
  const lightness = [58, 68, 50][Math.floor(subgraph / 9) % 3];
  return `hsl(${hue.toFixed(0)} 55% ${lightness}%)`;
}

class Picture {
  constructor(graph, canvas, tip) {
    Object.assign(this, { graph, canvas, tip });
    this.count = graph.name.length;
    this.marked = new Uint8Array(this.count);
    this.anyMarked = false;
    this.pinned = -1;
    this.context = canvas.getContext("2d");
    this.readColours();
    this.index();
    this.listen();
    this.resize();
    this.showWhole();
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    const named = (name) => style.getPropertyValue(name).trim();
    this.colours = {
      paper: named("--panel"), ink: named("--ink"), cpu: named("--cpu"), cpuInk: named("--cpu-ink"),
      edge: named("--edge"), crossing: named("--crossing"), mark: named("--mark"),
    };
  }

  /** Rows by height for finding what is under the pointer, nodes by colour for drawing, edges by node. */
  index() {
    const { x, y, subgraph, edges, cell } = this.graph;
    this.rows = new Map();
    this.bySubgraph = new Map();
    this.bounds = { left: 0, top: 0, right: 1, bottom: 1 };
    for (let node = 0; node < this.count; node++) {
      const row = Math.round(y[node] / cell[1]);
      if (!this.rows.has(row)) this.rows.set(row, []);
      this.rows.get(row).push(node);
      if (!this.bySubgraph.has(subgraph[node])) this.bySubgraph.set(subgraph[node], []);
      this.bySubgraph.get(subgraph[node]).push(node);
      this.bounds.right = Math.max(this.bounds.right, x[node] + cell[0]);
      this.bounds.bottom = Math.max(this.bounds.bottom, y[node] + cell[1]);
    }
    this.touching = Array.from({ length: this.count }, () => []);
    for (let at = 0; at < edges.length; at += 2) {
      this.touching[edges[at]].push(at);
      this.touching[edges[at + 1]].push(at);
    }
  }

  listen() {
    const { canvas } = this;
    const pointers = new Map();
    let moved = 0;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, event);
      moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) {
        this.point(event.offsetX, event.offsetY);
        return;
      }
      const others = [...pointers.values()].filter((each) => each.pointerId !== event.pointerId);
      moved += Math.hypot(event.offsetX - before.offsetX, event.offsetY - before.offsetY);
      if (others.length) {
        const [other] = others;
        const apart = (one) => Math.hypot(one.offsetX - other.offsetX, one.offsetY - other.offsetY) || 1;
        this.zoom(apart(event) / apart(before), other.offsetX, other.offsetY);
      } else if (moved > 3) {
        this.view.x += event.offsetX - before.offsetX;
        this.view.y += event.offsetY - before.offsetY;
        canvas.classList.add("dragging");
        this.draw();
      }
      pointers.set(event.pointerId, event);
    });
    for (const kind of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(kind, (event) => {
        pointers.delete(event.pointerId);
        canvas.classList.remove("dragging");
        if (kind === "pointerup" && moved <= 3) this.pin(this.nodeAt(event.offsetX, event.offsetY));
      });
    }
    canvas.addEventListener("pointerleave", () => this.point(-1, -1));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const pixels = event.deltaY * [1, 16, 400][event.deltaMode];
      this.zoom(Math.exp(-Math.max(-200, Math.min(200, pixels)) / 300), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
      if (step) {
        this.view.x += step[0];
        this.view.y += step[1];
        this.draw();
      } else if (event.key === "+" || event.key === "-") this.zoomMiddle(event.key === "+" ? 1.3 : 1 / 1.3);
      else if (event.key === "0") this.showWhole();
      else if (event.key === "Escape") this.pin(-1);
      else return;
      event.preventDefault();
    });
    new ResizeObserver(() => this.resize()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.readColours();
      this.draw();
    });
  }

  resize() {
    const { canvas } = this;
    this.ratio = devicePixelRatio || 1;
    this.width = canvas.clientWidth;
    this.height = canvas.clientHeight;
    canvas.width = Math.round(this.width * this.ratio);
    canvas.height = Math.round(this.height * this.ratio);
    if (this.view) this.draw();
  }

  /** Show a part of the graph, given in its own pixels, as large as fits. */
  showPart({ left, top, right, bottom }) {
    const scale = Math.min(1.2, this.width / (right - left + 80), this.height / (bottom - top + 80));
    this.view = {
      scale,
      x: this.width / 2 - (scale * (left + right)) / 2,
      y: this.height / 2 - (scale * (top + bottom)) / 2,
    };
    this.draw();
  }

  showWhole() {
    this.showPart(this.bounds);
  }

  showNodes(nodes) {
    if (!nodes.length) return;
    const { x, y, cell } = this.graph;
    const part = { left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity };
    for (const node of nodes) {
      part.left = Math.min(part.left, x[node]);
      part.top = Math.min(part.top, y[node]);
      part.right = Math.max(part.right, x[node] + cell[0]);
      part.bottom = Math.max(part.bottom, y[node] + cell[1]);
    }
    this.showPart(part);
  }

  zoom(factor, atX, atY) {
    const scale = Math.min(4, Math.max(0.002, this.view.scale * factor));
    const change = scale / this.view.scale;
    this.view = { scale, x: atX - (atX - this.view.x) * change, y: atY - (atY - this.view.y) * change };
    this.draw();
  }

  zoomMiddle(factor) {
    this.zoom(factor, this.width / 2, this.height / 2);
  }

  nodeAt(atX, atY) {
    const { x, y, cell } = this.graph;
    const graphX = (atX - this.view.x) / this.view.scale;
    const graphY = (atY - this.view.y) / this.view.scale;
    const row = this.rows.get(Math.floor(graphY / cell[1])) ?? [];
    return row.find((node) => graphX >= x[node] && graphX < x[node] + cell[0] - 14 && graphY < y[node] + cell[1] - 18) ?? -1;
  }

  point(atX, atY) {
    const node = atX < 0 ? -1 : this.nodeAt(atX, atY);
    if (node !== this.pointed) {
      this.pointed = node;
      this.draw();
    }
    this.tell(node >= 0 ? node : this.pinned, atX, atY);
  }

  pin(node) {
    this.pinned = node;
    this.tell(node, -1, -1);
    this.draw();
  }

  mark(nodes) {
    this.marked.fill(0);
    for (const node of nodes) this.marked[node] = 1;
    this.anyMarked = nodes.length > 0;
    this.draw();
  }

  describe(node) {
    const { graph } = this;
    const place = graph.subgraph[node];
    const pack = graph.packs[graph.pack[node]];
    const lines = [
      element("b", shown(graph.name[node])),
      element("p", shown(graph.operators[graph.operator[node]])),
      element("p", place < 0 ? "on the CPU" : `subgraph ${place + 1}, ${pack === null ? "no pack" : "pack " + shown(pack)}`),
    ];
    const reason = graph.reasons[graph.reason[node]];
    if (reason !== null) lines.push(element("p", shown(reason), "reason"));
    if (graph.inBodies[node]) lines.push(element("p", `${graph.inBodies[node]} nodes in its bodies`));
    return lines;
  }

  tell(node, atX, atY) {
    const { tip } = this;
    tip.hidden = node < 0;
    if (node < 0) return;
    tip.replaceChildren(...this.describe(node));
    const [x, y] = atX < 0 ? [10, 10] : [atX + 16, atY + 16];
    const left = Math.max(4, Math.min(x, this.width - tip.offsetWidth - 8));
    const top = y + tip.offsetHeight > this.height ? Math.max(4, atY - tip.offsetHeight - 12) : y;
    tip.style.transform = `translate(${left}px, ${top}px)`;
  }

  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.paint();
    });
  }

  paint() {
    const { context, colours, view } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = colours.paper;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    context.setTransform(this.ratio * view.scale, 0, 0, this.ratio * view.scale, this.ratio * view.x, this.ratio * view.y);
    this.seen = {
      left: -view.x / view.scale, top: -view.y / view.scale,
      right: (this.width - view.x) / view.scale, bottom: (this.height - view.y) / view.scale,
    };
    this.paintEdges();
    for (const [subgraph, nodes] of this.bySubgraph) this.paintNodes(subgraph, nodes);
  }

  paintEdges() {
    const { context, colours, graph, view } = this;
    const { edges, subgraph } = graph;
    const plain = new Path2D();
    const crossing = new Path2D();
    const chosen = new Path2D();
    for (let at = 0; at < edges.length; at += 2) {
      const crosses = subgraph[edges[at]] !== subgraph[edges[at + 1]];
      this.trace(at, crosses ? crossing : plain);
    }
    for (const node of [this.pinned, this.pointed]) {
      if (node >= 0) for (const at of this.touching[node]) this.trace(at, chosen);
    }
    context.globalAlpha = this.anyMarked ? 0.35 : 0.8;
    const pixel = 1 / view.scale;
    context.lineWidth = view.scale < 1 ? 0.7 * pixel : pixel;
    context.strokeStyle = colours.edge;
    context.stroke(plain);
    context.strokeStyle = colours.crossing;
    context.stroke(crossing);
    context.globalAlpha = 1;
    context.lineWidth = 2 * pixel;
    context.strokeStyle = colours.ink;
    context.stroke(chosen);
  }

  trace(at, path) {
    const { x, y, edges, cell } = this.graph;
    const { seen } = this;
    const [width, height] = [cell[0] - 14, cell[1] - 18];
    const [from, to] = [edges[at], edges[at + 1]];
    const [x1, y1, x2, y2] = [x[from] + width / 2, y[from] + height, x[to] + width / 2, y[to]];
    if (Math.max(x1, x2) < seen.left || Math.min(x1, x2) > seen.right) return;
    if (Math.max(y1, y2) < seen.top || Math.min(y1, y2) > seen.bottom) return;
    path.moveTo(x1, y1);
    if (this.view.scale < 0.25 || y2 <= y1) path.lineTo(x2, y2);
    else path.bezierCurveTo(x1, (y1 + y2) / 2, x2, (y1 + y2) / 2, x2, y2);
  }

  paintNodes(subgraph, nodes) {
    const { context, colours, graph, view, seen } = this;
    const { x, y, cell } = graph;
    const [width, height] = [cell[0] - 14, cell[1] - 18];
    const readable = view.scale > 0.38;
    const grow = Math.max(0, 1.6 / view.scale - height) / 2;
    const onCpu = subgraph < 0;
    for (const node of nodes) {
      if (x[node] > seen.right || x[node] + width < seen.left || y[node] > seen.bottom || y[node] + height < seen.top) continue;
      context.globalAlpha = this.anyMarked && !this.marked[node] ? 0.25 : 1;
      context.fillStyle = onCpu ? colours.cpu : colourOf(subgraph);
      if (readable) {
        context.beginPath();
        context.roundRect(x[node], y[node], width, height, 6);
        context.fill();
        this.label(node, onCpu);
      } else context.fillRect(x[node], y[node] - grow, width, height + 2 * grow);
      if (this.marked[node] || node === this.pinned || node === this.pointed) {
        context.lineWidth = 2 / view.scale;
        context.strokeStyle = this.marked[node] ? colours.mark : colours.ink;
        context.strokeRect(x[node] - 2, y[node] - 2, width + 4, height + 4);
      }
    }
    context.globalAlpha = 1;
  }

  label(node, onCpu) {
    const { context, colours, graph } = this;
    const [x, y] = [graph.x[node] + 9, graph.y[node]];
    context.fillStyle = onCpu ? colours.cpuInk : "#10151a";
    context.font = "600 13px system-ui, sans-serif";
    context.fillText(this.fitting(graph.operators[graph.operator[node]].replace(/^ai\.onnx::/, ""), 21), x, y + 19);
    context.font = "11px system-ui, sans-serif";
    context.fillText(this.fitting(graph.name[node], 26), x, y + 35);
  }

  /** The end of a long name, which is what tells it from its neighbours. */
  fitting(name, length) {
    const text = shown(name.length > 200 ? name.slice(-200) : name);
    return text.length <= length ? text : "…" + text.slice(1 - length);
  }
}

/** A table that sorts by a click on a heading and shows the rows that hold every word of its filter. */
class Table {
  constructor({ columns, rows, onRow = null, rowTitle = "" }) {
    Object.assign(this, { columns, rows, onRow, rowTitle });
    this.limit = 200;
    this.sorted = { column: -1, down: false };
    this.words = [];
  }

  mount(place) {
    const tools = element("div", "", "tools");
    const filter = element("input");
    filter.type = "search";
    filter.placeholder = "Filter rows";
    filter.setAttribute("aria-label", "Filter rows");
    filter.value = this.words.join(" ");
    filter.addEventListener("input", () => {
      this.words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      this.fill();
    });
    this.told = element("output");
    tools.append(filter, this.told);
    const table = element("table");
    const head = element("tr");
    this.columns.forEach(({ title, kind }, column) => {
      const heading = element("th", "", kind ? "number" : "");
      const button = element("button", title);
      button.type = "button";
      button.addEventListener("click", () => this.sortBy(column));
      heading.append(button);
      head.append(heading);
    });
    this.headings = [...head.children];
    const top = element("thead");
    top.append(head);
    this.body = element("tbody");
    table.append(top, this.body);
    this.more = element("button", "Show more rows");
    this.more.type = "button";
    this.more.addEventListener("click", () => {
      this.limit *= 5;
      this.fill();
    });
    const scroll = element("div", "", "scroll");
    scroll.append(table);
    place.replaceChildren(tools, scroll, this.more);
    this.fill();
  }

  sortBy(column) {
    const same = this.sorted.column === column;
    this.sorted = { column, down: same ? !this.sorted.down : Boolean(this.columns[column].kind) };
    this.fill();
  }

  found() {
    const { column, down } = this.sorted;
    const texts = (row) => this.columns.map((each, place) => String(row[place])).join(" ").toLowerCase();
    let rows = this.rows;
    if (this.words.length) {
      rows = rows.filter((row) => {
        const text = texts(row);
        return this.words.every((word) => text.includes(word));
      });
    }
    if (column < 0) return rows;
    const order = this.columns[column].kind
      ? (a, b) => (a[column] ?? -Infinity) - (b[column] ?? -Infinity)
      : (a, b) => (a[column] < b[column] ? -1 : a[column] > b[column] ? 1 : 0);
    return [...rows].sort((a, b) => (down ? order(b, a) : order(a, b)));
  }

  fill() {
    const rows = this.found();
    const visible = rows.slice(0, this.limit);
    this.body.replaceChildren(...visible.map((row) => this.line(row)));
    this.more.hidden = rows.length <= this.limit;
    const cut = rows.length > visible.length ? `, the first ${visible.length.toLocaleString()} shown` : "";
    this.told.textContent = `${rows.length.toLocaleString()} of ${this.rows.length.toLocaleString()} rows${cut}`;
    this.headings.forEach((heading, column) => {
      const now = column === this.sorted.column ? (this.sorted.down ? "descending" : "ascending") : "none";
      heading.setAttribute("aria-sort", now);
      heading.firstChild.textContent = this.columns[column].title + { descending: " ▾", ascending: " ▴", none: "" }[now];
    });
  }

  line(row) {
    const line = element("tr");
    this.columns.forEach(({ kind }, column) => {
      const value = row[column];
      const text = kind === "bytes" ? sizeText(value) : kind ? Number(value).toLocaleString() : shown(value);
      line.append(element("td", text, kind ? "number" : ""));
    });
    if (this.onRow) {
      line.className = "link";
      line.tabIndex = 0;
      line.title = this.rowTitle;
      const choose = () => {
        for (const each of this.body.querySelectorAll(".marked")) each.classList.remove("marked");
        line.classList.add("marked");
        this.onRow(row);
      };
      line.addEventListener("click", choose);
      line.addEventListener("keydown", (event) => {
        if (event.key === "Enter") choose();
      });
    }
    return line;
  }
}

const graph = data.graph;
const picture = new Picture(graph, document.getElementById("graph"), document.getElementById("tip"));
const all = [...graph.name.keys()];

function nodesOfGroups(groups) {
  const wanted = new Set(groups);
  const sets = graph.groupSets.map((each) => each.some((group) => wanted.has(group)));
  return all.filter((node) => sets[graph.groups[node]]);
}

function show(nodes) {
  picture.mark(nodes);
  picture.showNodes(nodes);
  document.getElementById("graph").scrollIntoView({ block: "nearest" });
}

const text = (title) => ({ title });
const number = (title) => ({ title, kind: "number" });
const bytes = (title) => ({ title, kind: "bytes" });
const named = (name) => show(all.filter((node) => graph.name[node] === name));
const inSubgraph = (shownNumber) => show(all.filter((node) => graph.subgraph[node] === shownNumber - 1));

const tables = {
  "What if": {
    columns: [text("what claiming more would change"), number("subgraphs then"), number("nodes on the EP"), number("tensors saved"), bytes("known bytes saved")],
    rows: data.tables.whatIf, onRow: (row) => show(nodesOfGroups(row[5])), rowTitle: "Show its nodes",
  },
  Declined: {
    columns: [text("operator"), number("nodes"), text("reason"), text("for instance"), text("installed packs that would take them")],
    rows: data.tables.declined, onRow: (row) => show(nodesOfGroups(row[5])), rowTitle: "Show its nodes",
  },
  "Faults of packs": {
    columns: [text("pack"), text("operator"), number("nodes"), text("fault"), text("for instance")],
    rows: data.tables.faults,
  },
  Operators: {
    columns: [text("operator"), number("claimed"), number("declined"), text("pack")],
    rows: data.tables.operators, onRow: (row) => show(all.filter((node) => graph.operators[graph.operator[node]] === row[0])),
    rowTitle: "Show its nodes",
  },
  Subgraphs: {
    columns: [number("subgraph"), number("nodes"), number("tensors in"), number("tensors out"), bytes("known bytes")],
    rows: data.tables.subgraphs, onRow: (row) => inSubgraph(row[0]), rowTitle: "Show it",
  },
  Crossings: {
    columns: [text("tensor"), text("direction"), number("subgraph"), text("type"), bytes("bytes"), text("")],
    rows: data.tables.crossings, onRow: (row) => inSubgraph(row[2]), rowTitle: "Show the subgraph",
  },
  "Graph breaks": {
    columns: [text("node"), text("operator"), text("input"), text("value read back"), number("subgraph")],
    rows: data.tables.breaks, onRow: (row) => named(row[0]), rowTitle: "Show the node",
  },
  Nodes: {
    columns: [text("node"), text("operator"), text("where"), text("pack"), text("reason")],
    rows: all.map((node) => [
      graph.name[node],
      graph.operators[graph.operator[node]],
      graph.subgraph[node] < 0 ? "CPU" : `subgraph ${graph.subgraph[node] + 1}`,
      graph.packs[graph.pack[node]] ?? "",
      graph.reasons[graph.reason[node]] ?? "",
      node,
    ]),
    onRow: (row) => show([row[5]]), rowTitle: "Show the node",
  },
};

const tabs = document.getElementById("tabs");
for (const [name, options] of Object.entries(tables)) {
  if (!options.rows.length) continue;
  const table = new Table(options);
  const tab = element("button", `${name} (${options.rows.length.toLocaleString()})`);
  tab.type = "button";
  tab.setAttribute("role", "tab");
  tab.addEventListener("click", () => {
    for (const each of tabs.children) each.setAttribute("aria-selected", String(each === tab));
    table.mount(document.getElementById("table"));
  });
  tabs.append(tab);
}
tabs.firstChild?.click();

const search = document.getElementById("search");
let hits = [];
let hit = -1;
search.addEventListener("input", () => {
  const wanted = search.value.toLowerCase();
  hits = wanted ? all.filter((node) => `${graph.name[node]} ${graph.operators[graph.operator[node]]}`.toLowerCase().includes(wanted)) : [];
  hit = -1;
  document.getElementById("found").textContent = wanted ? `${hits.length.toLocaleString()} nodes` : "";
  picture.mark(hits);
});
search.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !hits.length) return;
  hit = (hit + (event.shiftKey ? hits.length - 1 : 1)) % hits.length;
  document.getElementById("found").textContent = `${hit + 1} of ${hits.length.toLocaleString()} nodes`;
  picture.showNodes([hits[hit]]);
  picture.pin(hits[hit]);
});
document.getElementById("closer").addEventListener("click", () => picture.zoomMiddle(1.4));
document.getElementById("farther").addEventListener("click", () => picture.zoomMiddle(1 / 1.4));
document.getElementById("whole").addEventListener("click", () => {
  picture.mark([]);
  picture.pin(-1);
  picture.showWhole();
});
