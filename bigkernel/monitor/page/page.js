// Shows a state of jobs (JSON): that of the scheduler, requested every second, or that inside a report.
// The state holds text from outside (titles, paths, errors): it enters the page only as textContent.

const MISSING = "–";
const at = (id) => document.getElementById(id);
const rendered = {}; // what each section shows now, as text
let state = JSON.parse(at("state").textContent);
const live = state === null;
let selected = []; // job and sweep chosen by the reader; empty: the newest running ones

function make(tag, properties = {}, ...children) {
  const { data = {}, ...rest } = properties;
  const node = Object.assign(document.createElement(tag), rest);
  Object.assign(node.dataset, data);
  node.append(...children.filter((child) => child !== null && child !== ""));
  return node;
}
const text = (tag, content, className = "") => make(tag, { textContent: content, className });
const div = (className, ...children) => make("div", { className }, ...children);
const note = (label) => text("div", label, "note");
const badge = (state, label) => make("span", { className: "badge", textContent: label, data: { state } });
const colour = (role) => getComputedStyle(document.documentElement).getPropertyValue(`--${role}`).trim();
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

// -- numbers as text -----------------------------------------------------------------------------------------------

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const count = (value) => (isNumber(value) ? Math.round(value).toLocaleString("en") : MISSING);
const percent = (value, whole = 1) => (whole > 0 ? `${Math.round((100 * value) / whole)}\u00a0%` : MISSING);

function measure(value, unit) {
  if (!isNumber(value)) return MISSING;
  const powers = ["", "k", "M", "G", "T", "P"];
  let power = 0;
  for (; value >= 999.5 && power < 5; power += 1) value /= 1000;
  return `${value >= 99.5 ? Math.round(value) : Number(value.toPrecision(3))}\u00a0${powers[power]}${unit}`;
}
const size = (bytes) => measure(bytes, "B");
const rate = (flops) => measure(flops, "FLOP/s");

function duration(seconds) {
  if (!isNumber(seconds)) return MISSING;
  if (seconds < 0.0995) return `${Number((1000 * seconds).toPrecision(2))} ms`;
  if (seconds < 9.95) return `${Number(seconds.toFixed(1))} s`;
  const whole = Math.round(seconds), minutes = Math.round(seconds / 60), hours = Math.round(seconds / 3600);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(hours / 24)} days ${hours % 24} h`;
}
const clock = (time) => new Date(1000 * time).toLocaleTimeString([], { hour12: false });
const moment = (time) => new Date(1000 * time).toLocaleString("sv"); // 2025-11-25 13:05:09

function plainly(value) {
  if (value === null || value === undefined) return MISSING;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(6)));
  if (Array.isArray(value)) return value.map(plainly).join(", ");
  if (typeof value === "object") {
    const rest = Object.entries(value).filter(([name]) => name !== "name")
      .map(([name, item]) => `${name} = ${plainly(item)}`);
    return value.name === undefined ? rest.join(", ") : `${value.name}(${rest.join(", ")})`;
  }
  return String(value);
}

// -- small drawings -----------------------------------------------------------------------------------------------

function svg(tag, attributes, content = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = content;
  return node;
}

function drawing(section, height, label, ...nodes) {
  const width = at(section).clientWidth - 34;
  const node = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  node.append(...nodes);
  return node;
}

function hover(node, label) {
  node.append(svg("title", {}, label));
  return node;
}

function key(role, label, data = {}) {
  const swatch = make("i", { data });
  if (data.shape) swatch.style.borderColor = `var(--${role})`;
  else swatch.style.background = `var(--${role})`;
  return make("span", { data }, swatch, label);
}

// Bars from left to right below a roof, with lines at marks {value, role}: heights, names to hover, axis texts, and
// where each bar ends (equal widths, if they are not given).
function columns(section, values, { role, names, marks = [], show, axis, ends }) {
  const room = 86, height = 150, width = at(section).clientWidth - 34 - room;
  const roof = 1.06 * Math.max(...values, ...marks.map((mark) => mark.value), 1e-12);
  const y = (value) => height - (height * value) / roof;
  const nodes = [0, 0.5, 1].map((share) => svg("line",
    { x1: room, x2: room + width, y1: y(share * roof), y2: y(share * roof) }));
  for (const share of [0, 0.5, 1]) {
    nodes.push(svg("text", { x: room - 8, y: y(share * roof) + 4, "text-anchor": "end" }, show(share * roof)));
  }
  const gap = Math.min(3, width / Math.max(1, values.length) / 6);
  const stops = [0, ...(ends ?? values.map((_, i) => i + 1))];
  const x = (stop) => room + (width * stop) / Math.max(stops.at(-1), 1e-12);
  values.forEach((value, i) => {
    const wide = Math.max(0.5, x(stops[i + 1]) - x(stops[i]) - 2 * gap), tall = Math.max(0, height - y(value));
    const bar = { x: x(stops[i]) + gap, y: y(value), width: wide, height: tall, fill: `var(--${role})` };
    nodes.push(hover(svg("rect", bar), names[i]));
  });
  for (const { value, role: line, dashed } of marks) {
    nodes.push(svg("line", { x1: room, x2: room + width, y1: y(value), y2: y(value), style: `stroke: var(--${line})`,
      "stroke-width": 1.5, "stroke-dasharray": dashed ? "6 4" : "" }));
  }
  nodes.push(svg("text", { x: room, y: height + 16 }, axis[0]));
  nodes.push(svg("text", { x: room + width, y: height + 16, "text-anchor": "end" }, axis[1]));
  return drawing(section, height + 20, axis.join(" to "), ...nodes);
}

function shade(share, strength = 0.85) {
  const mix = Math.round(100 * strength * Math.max(0, Math.min(1, share)));
  return `color-mix(in srgb, var(--merged) ${mix}%, var(--ground))`;
}

// A table of coloured cells; cell(i, j) gives {label, share, title, best}; a share below 0 is grey.
function matrix(rows, names, cell, className = "matrix") {
  const head = make("tr", {}, text("th", ""), ...names.map((name) => make("th", {}, text("span", name))));
  const lines = rows.map((row, i) => make("tr", {}, text("th", row), ...names.map((_, j) => {
    const { label, share, title, best } = cell(i, j);
    const node = make("td", { textContent: label, title });
    node.style.background = share < 0 ? "var(--bar)" : shade(share);
    if (share > 0.85) node.style.color = "var(--ground)";
    if (best) node.dataset.best = "";
    return node;
  })));
  return div("scroll", make("table", { className }, head, ...lines));
}

// A table; lines after the first `most` are folded. Words stand left, but in columns that have numbers too.
function table(header, lines, most = lines.length) {
  const parts = (value) => (value !== null && typeof value === "object" ? value : { label: value });
  const isWord = ({ label }) => typeof label === "string" && !/^[\d–(-]/.test(label);
  const words = header.map((_, column) => lines.every((line) => isWord(parts(line[column]))));
  const cell = (value, column) => {
    const { label, note = "", off = false } = parts(value);
    const className = `${words[column] ? "text" : ""} ${off ? "off" : ""}`;
    return make("td", { className, data: { name: header[column] } }, String(label), note ? text("small", note) : "");
  };
  const head = make("tr", {}, ...header.map((name) => text("th", name, "text")));
  const rest = lines.length > most ? make("details", {}, text("summary", `${count(lines.length - most)} more`),
    table(header, lines.slice(most))) : "";
  return div("scroll", make("table", { className: header.length > 5 ? "stacked" : "" }, head,
    ...lines.slice(0, most).map((line) => make("tr", {}, ...line.map(cell)))), rest);
}

function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== undefined && value !== null && value !== ""
    && value.length !== 0);
  return make("dl", {}, ...known.flatMap(([name, value]) => [text("dt", name), text("dd", plainly(value))]));
}

function pictures(packed, captions) {
  const [h, w] = packed.shape;
  return div("digits", ...packed.data.slice(0, captions.length).map((data, i) => {
    const canvas = make("canvas", { width: w, height: h }), bytes = atob(data), image = new ImageData(w, h);
    for (let k = 0; k < w * h; k += 1) {
      const level = bytes.charCodeAt(k);
      image.data.set([level, level, level, 255], 4 * k);
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
    return make("figure", {}, canvas, ...captions[i].map((label) => text("div", label)));
  }));
}

// -- jobs ---------------------------------------------------------------------------------------------------------

const STATE_NAMES = { lost: "driver lost" };
const rowsDone = (sweep) => sweep.rows_done + sweep.rows_under_way;
const stateName = (job) => STATE_NAMES[job.state] ?? job.state;

function chosenSweep(job) {
  const running = job.sweeps.filter((sweep) => sweep.state === "running");
  const longest = job.sweeps.reduce((a, b) => (b.elapsed_seconds > a.elapsed_seconds ? b : a), job.sweeps[0]);
  const latest = running.at(-1) ?? (job.state === "running" ? job.sweeps.at(-1) : longest);
  return job.sweeps.find((sweep) => sweep.token === selected[1]) ?? latest;
}

function sentence(job, sweep) {
  if (job.state !== "running") return `${stateName(job)} after ${duration(job.elapsed_seconds)}`;
  if (job.step) return `${job.step.what}: ${count(job.step.done)} of ${count(job.step.total)}`;
  if (!sweep) return "waiting for the first sweep";
  if (sweep.state !== "running") return `${sweep.what}: ${sweep.state}; the driver continues`;
  if (!rowsDone(sweep)) return `${sweep.what}: waiting for the first segment`;
  if (rowsDone(sweep) === sweep.rows) return `${sweep.what}: all rows done, ${merges(sweep)}`;
  return `${sweep.what}: ${count(rowsDone(sweep))} of ${count(sweep.rows)} rows`;
}

const merges = (sweep) => (sweep.merges ? `${count(sweep.merges_done)} of ${count(sweep.merges)} merges`
  : "nothing to merge");

function timeLeft(sweep) {
  const { expected, low, high } = sweep.remaining_seconds ?? {};
  if (!isNumber(expected) || rowsDone(sweep) === sweep.rows) return "";
  const between = duration(low) === duration(high) ? "" : `, ${duration(low)} to ${duration(high)}`;
  return make("span", { className: "left" }, text("b", duration(expected)), ` left${between}`);
}

function searched(job) {
  const { count: planned, begun, ended, remaining_seconds: left } = job.search ?? {};
  if (job.state !== "running" || !(planned > 1)) return "";
  const rest = left ? `, ${duration(left)} left in ${ended ? "all" : "the sweeps"}` : "";
  return `sweep ${count(begun)}${begun > planned ? "" : ` of ${count(planned)}`}${rest}`;
}

function progress(job, sweep) {
  const pieces = job.step
    ? [["running", job.step.done / Math.max(1, job.step.total)]]
    : [["merged", sweep.rows_merged], ["published", sweep.rows_done - sweep.rows_merged],
      ["running", sweep.rows_under_way]]
      .map(([role, rows]) => [role, rows / Math.max(1, sweep.rows)]);
  const bar = div("bar", ...pieces.map(([role, share]) => {
    const piece = make("i");
    piece.style.cssText = `width: ${100 * share}%; background: var(--${role})`;
    return piece;
  }));
  const done = text("b", percent(sum(pieces.map(([, share]) => share))));
  const speed = sweep && sweep.flops_per_second && !job.step ? text("span", rate(sweep.flops_per_second)) : "";
  return [bar, div("line", done, speed, text("span", `${duration(job.elapsed_seconds)} so far`, "soft"))];
}

function card(job, chosen) {
  const sweep = job.sweeps.length ? chosenSweep(job) : undefined, running = job.state === "running";
  const node = make("button", { type: "button", data: { job: job.id, state: job.state } });
  const head = div("line", badge(job.state, stateName(job)),
    text("b", sentence(job, sweep)));
  if (running && sweep && sweep.state === "running" && !job.step) head.append(timeLeft(sweep));
  if (!running) head.append(text("span", `${moment(job.started)} to ${clock(job.ended)}`, "soft left"));
  node.append(head, ...(running && (sweep || job.step) ? progress(job, sweep) : []));
  const place = job.pid ? `${job.host}, process ${job.pid}` : job.host;
  node.append(div("line", text("code", job.title),
    ...[searched(job), place, job.run].map((note) => text("span", note, "note"))));
  if (job.error) node.append(text("div", job.error, "bad"));
  node.setAttribute("aria-pressed", state.jobs.length > 1 && job.id === chosen);
  node.onclick = () => choose(job.id);
  return node;
}

// Whether a job began to work: one that is refused, as its run directory holds another job, has no sweep.
const ran = (job) => job.sweeps.length > 0 || job.state !== "failed";

function jobs(chosen) {
  const open = state.jobs.filter((job) => job.state === "running");
  const first = open.length ? open : state.jobs.slice(0, 1), past = state.jobs.slice(first.length);
  const nodes = first.map((job) => card(job, chosen));
  if (past.length) {
    const tries = past.filter(ran).length, refused = past.length - tries;
    const named = [tries ? `${tries} earlier attempt${tries > 1 ? "s" : ""}` : "",
      refused ? `${refused} refused` : ""].filter(Boolean).join(", ");
    const unfolded = at("past")?.open ?? past.some((job) => job.id === chosen);
    nodes.push(make("details", { id: "past", open: unfolded },
      text("summary", live ? `${past.length} earlier jobs` : named),
      ...past.slice(0, 50).map((job) => card(job, chosen))));
  }
  return nodes;
}

function sweeps(job, sweep) {
  return job.sweeps.map((one, number) => {
    const failed = one.state === "failed" ? " (failed)" : "";
    const node = make("button", { type: "button", textContent: `${number + 1} ${one.what}${failed}`,
      data: { sweep: one.token } });
    node.setAttribute("aria-pressed", one.token === sweep?.token);
    node.onclick = () => choose(job.id, one.token);
    return node;
  });
}

function empty() {
  if (!live) return [text("h2", "No job has started here yet")];
  return [text("h2", "No job yet"), text("p", "Jobs that start on this scheduler appear here:"),
    text("pre", `bigkernel fit train.corpus digits.model --sigma 0.5 --cluster ${state.address}\n\n`
      + `with bigkernel.connect("${state.address}"):\n`
      + `    KernelRidge(n_landmarks=4000).fit(open_corpus("train.corpus"))`)];
}

// -- one sweep ----------------------------------------------------------------------------------------------------

const STATES = { w: "waiting", r: "running", a: "retried", p: "published", m: "merged", f: "failed" };

function map(sweep) {
  const n = sweep.stops.length, room = at("map").clientWidth - 34;
  const lines = Math.max(1, Math.ceil(Math.sqrt((n * 140) / (room * 5)))), across = Math.ceil(n / lines);
  const w = room / across, h = Math.max(8, Math.min(28, 150 / lines)), ratio = window.devicePixelRatio || 1;
  const canvas = make("canvas", { width: room * ratio, height: lines * h * ratio });
  const paper = canvas.getContext("2d"), roles = Object.fromEntries(Object.entries(STATES)
    .map(([letter, role]) => [letter, colour(role)]));
  const gap = w > 4 ? 1 : 0, resumed = new Set(sweep.resumed), waiting = colour("waiting"), ground = colour("ground");
  paper.scale(ratio, ratio);
  for (let i = 0; i < n; i += 1) {
    const x = (i % across) * w, y = Math.floor(i / across) * h, letter = sweep.states[i];
    const share = letter === "r" || letter === "a" ? Math.max(0.15, Math.min(1, sweep.fractions[i] ?? 0)) : 1;
    paper.fillStyle = waiting;
    paper.fillRect(x, y, w - gap, h - 1);
    paper.fillStyle = roles[letter];
    paper.fillRect(x, y, (w - gap) * share, h - 1);
    paper.fillStyle = ground;
    if (resumed.has(i)) paper.fillRect(x + w / 2 - 1.5, y + h / 2 - 1.5, 3, 3);
  }
  const label = note("");
  canvas.onmousemove = (event) => {
    const box = canvas.getBoundingClientRect();
    const i = Math.floor((event.clientY - box.top) / h) * across
      + Math.floor(((event.clientX - box.left) / box.width) * across);
    if (i >= n) return;
    const worker = sweep.running_on[i] ?? sweep.ran_on[i] ?? "";
    const tries = sweep.attempts[i] ? `, started ${sweep.attempts[i]} times` : "";
    const rows = `rows ${count(sweep.stops[i - 1] ?? 0)} to ${count(sweep.stops[i])}`;
    label.textContent = `${rows}: ${STATES[sweep.states[i]]} ${worker}${tries}`;
  };
  const counts = Object.entries(sweep.segments)
    .filter(([name, number]) => number || !["retried", "failed"].includes(name));
  const keys = counts.map(([name, number]) => key(name, `${name} ${count(number)}`, { state: name, count: number }));
  if (resumed.size) keys.push(text("span", `${count(resumed.size)} resumed from the run (dot)`));
  keys.push(text("span", merges(sweep), "soft"));
  return [div("line", text("h2", "Rows"), text("span",
    `${sweep.what}: ${count(sweep.rows)} rows in ${count(n)} segment${n === 1 ? "" : "s"}`, "note")),
    canvas, div("keys", ...keys), label];
}

function rates(sweep) {
  const history = sweep.rate_history;
  const head = [text("h2", "Rate"), text("div", sweep.flops_per_second
    ? `mean ${rate(sweep.flops_per_second)}, ${count((sweep.flops_per_second * sweep.rows) / sweep.plan.flops)} rows/s`
    : "waiting for the first segment", "note")];
  if (!history.length) return head;
  const names = history.map(([time, value]) => `${rate(value)} until ${duration(time)}`);
  const chart = columns("rate", history.map(([, value]) => value),
    { role: "accent", names, show: rate, axis: ["start", duration(history.at(-1)[0])],
      ends: history.map(([time]) => time) });
  return [...head, chart];
}

const STAGES = {
  landmarks: "rows are chosen as landmarks",
  core: "kernel values between landmarks, and their factor",
  preconditioner: "an approximate inverse for conjugate gradients",
  read: "chunks of rows are read",
  convert: "rows become floating-point numbers, and row maps are applied",
  block: "distances or products of rows and landmarks",
  exp: "kernel values from them",
  gram: "products of kernel values of landmarks, summed over rows",
  product: "kernel values times vectors, for conjugate gradients",
  predict: "kernel values times coefficients",
  add: "sums with the targets, and of one part to the next",
  write: "predictions are written",
  publish: "sums of segments are written to the run directory",
  merge: "sums of segments are added",
  solve: "coefficients from the sums, in the driver",
};

function stages(job, sweep) {
  const totals = { ...sweep?.stage_seconds };
  for (const [name, seconds] of Object.entries(job.stage_seconds)) totals[name] = (totals[name] ?? 0) + seconds;
  const entries = Object.entries(totals).filter(([, seconds]) => seconds > 0).sort((a, b) => b[1] - a[1]);
  const total = sum(entries.map(([, seconds]) => seconds)), width = at("stages").clientWidth - 34, room = 96,
    tail = 124;
  const nodes = entries.map(([name, seconds], i) => {
    const long = ((width - room - tail) * seconds) / entries[0][1], y = 24 * i;
    const role = colour(`stage-${name}`) ? `stage-${name}` : "stage-other";
    const line = svg("g", {});
    line.append(svg("title", {}, STAGES[name] ?? name),
      svg("text", { x: room - 8, y: y + 14, "text-anchor": "end", class: "value" }, name.slice(0, 14)),
      svg("rect", { x: room, y: y + 2, width: Math.max(1, long), height: 16, fill: `var(--${role})` }),
      svg("text", { x: room + long + 6, y: y + 14 }, `${duration(seconds)} (${percent(seconds, total)})`));
    return line;
  });
  return [text("h2", "Time per stage"), note("summed over workers; the driver's time is counted once; hints say what a stage is"),
    drawing("stages", 24 * entries.length + 4, "seconds by stage", ...nodes)];
}

function memory(sweep) {
  const names = [...new Set([...Object.keys(state.workers ?? {}), ...Object.keys(sweep.workers)])];
  const peak = (name) => Math.max(sweep.workers[name]?.peak_bytes ?? 0, state.workers?.[name]?.memory_bytes ?? 0);
  const limit = Math.max(0, ...Object.values(state.workers ?? {}).map((worker) => worker.limit_bytes));
  const marks = [{ value: sweep.planned_bytes, role: "mark", dashed: true }, { value: limit, role: "bad" }]
    .filter((mark) => mark.value > 0);
  const lost = names.filter((name) => sweep.workers[name]?.lost).length, first = names.slice(0, 400);
  const labels = first.map((name) => {
    const { segments = 0, kept_bytes: kept = 0, running = [], lost: gone = false, device, device_peak_bytes: onGpu = 0 }
      = sweep.workers[name] ?? {}, now = state.workers?.[name];
    const doing = running.length ? "busy" : gone ? "lost" : now?.status ?? "";
    const details = [`peak ${size(peak(name))}`, kept && `${size(kept)} of it kept blocks`,
      onGpu && `peak on ${device} ${size(onGpu)}`, `${count(segments)} segments`, doing];
    return `${name}: ${details.filter(Boolean).join(", ")}`;
  });
  const keys = [key("accent", "peak of a worker"), ...marks.map((mark) => key(mark.role,
    `${mark.dashed ? "planned" : "limit"} ${size(mark.value)}`, { shape: mark.dashed ? "dashed" : "solid" }))];
  const above = sweep.planned_bytes ? names.filter((name) => peak(name) > sweep.planned_bytes).length : 0;
  if (above) keys.push(text("span", `${count(above)} above the plan`, "bad"));
  const chart = columns("memory", first.map(peak), { role: "accent", names: labels, marks, show: size,
    axis: [`${count(names.length)} worker${names.length === 1 ? "" : "s"}`, lost ? `${count(lost)} lost` : ""] });
  return [text("h2", "Memory of the workers"), div("keys", ...keys), chart];
}

function log(job) {
  const lines = job.events.toReversed().map((event) => make("li", { data: { kind: event.kind } },
    text("time", clock(event.time), "soft"), text("b", event.kind, "soft"), text("span", event.text)));
  const list = make("ol", { tabIndex: 0 }, ...lines);
  list.setAttribute("aria-label", "Events of this job");
  return [div("line", text("h2", "Events"), text("span", "newest first", "note")), list];
}

// -- all together -------------------------------------------------------------------------------------------------

function show(id, given, draw) {
  const section = at(id), known = JSON.stringify([given, document.documentElement.dataset.theme, innerWidth]);
  if (rendered[id] === known) return;
  rendered[id] = known;
  section.hidden = given === null;
  if (given === null) return;
  const focused = section.contains(document.activeElement) ? JSON.stringify(document.activeElement.dataset) : null;
  const scrolled = section.querySelector("ol")?.scrollTop ?? 0;
  try {
    section.replaceChildren(...draw());
  } catch (error) {
    console.error(`bigkernel: ${id}`, error);
    section.replaceChildren(text("p", "This section cannot be shown: its data are invalid.", "failure"));
  }
  if (section.querySelector("ol")) section.querySelector("ol").scrollTop = scrolled;
  if (focused) [...section.querySelectorAll("button")]
    .find((node) => JSON.stringify(node.dataset) === focused)?.focus({ preventScroll: true });
}

function update() {
  if (state === null) return;
  const job = state.jobs.find((one) => one.id === selected[0]) ?? state.jobs[0], run = state.run;
  const sweep = job?.sweeps.length ? chosenSweep(job) : undefined, visible = sweep && sweep.stops ? sweep : undefined;
  const figures = run ? outcomeOf(run) : {};
  at("page").dataset.state = job?.state ?? "empty";
  at("title").textContent = run ? figures.tune?.name ?? run.name : "Jobs";
  const done = job?.state === "running" && sweep ? `${percent(rowsDone(sweep), sweep.rows)} · ` : "";
  document.title = `${done}${run ? at("title").textContent : job?.title ?? "jobs"} · bigkernel`;
  const here = Object.keys(state.workers ?? {}).length,
    busy = Object.values(sweep?.workers ?? {}).filter((one) => one.running.length).length;
  const busyWorkers = busy ? `, ${count(busy)} busy` : "";
  at("cluster").textContent = run ? "" : `${count(here)} worker${here === 1 ? "" : "s"}${busyWorkers}`;
  at("follow").hidden = !selected.length;
  at("dask").hidden = !live || !state.pages;
  show("empty", state.jobs.length ? null : 0, empty);
  show("outcome", run ? run.state : null, () => outcome(run, figures));
  show("jobs", [state.jobs, selected], () => jobs(job?.id));
  show("sweeps", job && job.sweeps.length > 1 ? [job.sweeps.map((one) => one.state), sweep.token] : null,
    () => sweeps(job, sweep));
  show("map", visible ?? null, () => map(visible));
  show("rate", visible && (visible.flops_per_second || visible.state === "running") ? [visible.rate_history, visible.flops_per_second] : null, () => rates(visible));
  show("stages", job && sum(Object.values({ ...sweep?.stage_seconds, ...job.stage_seconds })) > 0
    ? [job.stage_seconds, sweep?.stage_seconds] : null,
    () => stages(job, sweep));
  show("memory", visible && Object.keys({ ...visible.workers, ...state.workers }).length
    ? [visible.workers, state.workers] : null, () => memory(visible));
  show("results", figures.score || figures.tune ? true : null, () => results(figures));
  show("fit", figures.fit ? true : null, () => fit(figures, run));
  show("log", job?.events.length ? job.events : null, () => log(job));
  show("plan", job?.sweeps.length ? job.sweeps : null, () => plan(job));
  show("repeat", run ? true : null, () => repeat(run));
}

function choose(...names) {
  selected = names;
  update();
}

// -- light and dark -----------------------------------------------------------------------------------------------

const dark = window.matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
try {
  chosenTheme = localStorage.getItem("bigkernel-theme");
} catch {
  // a browser that stores nothing
}

function paint() {
  const theme = chosenTheme ?? (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  at("theme").textContent = theme === "dark" ? "Light" : "Dark";
  update();
}

at("theme").onclick = () => {
  chosenTheme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("bigkernel-theme", chosenTheme);
  } catch {
    // the switch then lasts as long as the page
  }
  paint();
};
at("follow").onclick = () => choose();
dark.addEventListener("change", paint);
window.addEventListener("resize", update);

async function ask() {
  try {
    const answer = await fetch("bigkernel/state.json", { cache: "no-store", signal: AbortSignal.timeout(15000) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    state = await answer.json();
    at("cut").hidden = true;
    update();
  } catch {
    at("cut").hidden = false;
  }
  setTimeout(ask, 1000);
}

paint();
if (live) ask();
