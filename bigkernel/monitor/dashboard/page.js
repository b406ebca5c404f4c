// The script of the page: shows the facts that the scheduler sends as text, and paints the drawings light or dark.
// Facts hold text from outside (titles, paths, errors): it goes into the page by textContent alone.
const bigkernel = (() => {
  "use strict";
  const KEY = "bigkernel-theme";
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let choice = null;
  let paints = [];

  const at = (id) => document.getElementById(id);

  function make(tag, properties = {}, ...children) {
    const { data = {}, ...rest } = properties;
    const node = Object.assign(document.createElement(tag), rest);
    Object.assign(node.dataset, data);
    node.append(...children);
    return node;
  }

  // -- light and dark ------------------------------------------------------------------------------------------------

  function stored() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // a browser that keeps nothing for us
    }
  }

  const theme = () => stored() ?? (system.matches ? "dark" : "light");

  function paint() {
    document.documentElement.dataset.theme = theme();
    if (at("bk-theme") !== null) {
      at("bk-theme").textContent = theme() === "dark" ? "Light" : "Dark";
    }
    const colours = getComputedStyle(document.documentElement);
    const colour = (role) => colours.getPropertyValue(`--${role}`).trim();
    for (const [id, name, role] of paints) {
      const model = Bokeh.documents.map((found) => found.get_model_by_id(id)).find((found) => found !== null);
      if (model !== undefined) {
        const value = name === "palette" ? role.split(",").map(colour) : colour(role);
        model.setv({ [name]: name === "palette" || model.properties[name].get_value()?.value === undefined
          ? value : { value } }, { sync: false });
      }
    }
  }

  function turn() {
    try {
      localStorage.setItem(KEY, theme() === "dark" ? "light" : "dark");
    } catch {
      // the switch then lasts as long as nothing: the system's theme stays
    }
    paint();
  }

  // -- jobs ----------------------------------------------------------------------------------------------------------

  function choose(...wanted) {
    choice.tags = wanted;
  }

  function bar(card) {
    const parts = Object.entries(card.shares).map(([state, share]) => {
      const part = make("i", { data: { state } });
      part.style.width = `${100 * share}%`;
      return part;
    });
    return make("div", { className: "bk-bar" }, ...parts);
  }

  function line(...parts) {
    const nodes = parts.filter(([text]) => text).map(([text, className]) => make("span", { className, textContent: text }));
    return make("div", { className: "bk-line" }, ...nodes);
  }

  function card(job) {
    const running = job.state === "running";
    const node = make("button", { type: "button", className: "bk-job", data: { job: job.id, state: job.state } });
    const head = line([job.sentence, "bk-name"]);
    head.prepend(make("span", { className: "bk-badge", textContent: job.said, data: { state: job.state } }));
    if (running) {
      const left = make("div", { className: "bk-left" });
      if (job.left) left.append(make("b", { textContent: job.left }), ` left${job.between ? `, ${job.between}` : ""}`);
      node.append(make("div", { className: "bk-head-line" }, head, left), bar(job), line([job.percent, "bk-name"],
        [job.merged, ""], [job.rate, ""], [`${job.elapsed} so far`, ""]));
    } else {
      const ended = job.ended === null ? "" : `ended ${new Date(1000 * job.ended).toLocaleTimeString([], { hour12: false })}`;
      head.append(make("span", { className: "bk-push bk-meta", textContent: ended }));
      node.append(head, line([job.rows, "bk-meta"], [job.rate, "bk-meta"]));
    }
    node.append(make("code", { className: "bk-command", textContent: job.title }));
    const where = line([job.host, "bk-meta"], [job.run, "bk-meta"]);
    if (where.childNodes.length) node.append(where);
    if (job.error) node.append(make("div", { className: "bk-error", textContent: job.error }));
    return node;
  }

  // The cards are made anew every second: the one with the keyboard's focus keeps it.
  function renew(parent, ...nodes) {
    const focused = parent.contains(document.activeElement) ? document.activeElement.dataset : null;
    parent.replaceChildren(...nodes);
    if (focused !== null) {
      const same = (node) => node.dataset.job === focused.job && node.dataset.sweep === focused.sweep;
      [...parent.querySelectorAll("button, summary")].find(same)?.focus({ preventScroll: true });
    }
  }

  function jobs(facts) {
    const running = facts.cards.filter((job) => job.state === "running");
    const shown = running.length ? running : facts.cards.slice(0, 1);
    const past = facts.cards.slice(shown.length);
    const nodes = shown.map(card);
    if (past.length) {
      const open = at("bk-past")?.open ?? past.some((job) => job.id === facts.job);
      const list = make("div", {}, ...past.map(card));
      nodes.push(make("details", { id: "bk-past", open }, make("summary", { textContent: `${past.length} earlier` }), list));
    }
    renew(at("bk-jobs"), ...nodes);
    const several = facts.cards.length > 1;
    for (const node of at("bk-jobs").querySelectorAll("button")) {
      node.setAttribute("aria-pressed", several && node.dataset.job === facts.job);
      node.onclick = () => choose(node.dataset.job);
    }
    at("bk-empty").hidden = facts.cards.length > 0;
    at("bk-empty-title").textContent = facts.starting ? `Starting ${facts.starting} workers …` : "No job yet";
    at("bk-address").textContent = facts.address;
    for (const node of document.querySelectorAll(".bk-address")) node.textContent = facts.address;
    at("bk-cluster").textContent = facts.workers;
    at("bk-follow").hidden = facts.followed;
    sweeps(facts);
    const job = facts.cards.find((found) => found.id === facts.job);
    at("bk-page").dataset.state = job === undefined ? "empty" : job.state;
  }

  function sweeps(facts) {
    const job = facts.cards.find((found) => found.id === facts.job);
    const nodes = (job?.sweeps ?? []).map((sweep) => {
      const name = sweep.state === "failed" ? `${sweep.name} (failed)` : sweep.name;
      const node = make("button", { type: "button", textContent: name, data: { job: job.id, sweep: sweep.token } });
      node.setAttribute("aria-pressed", sweep.token === facts.sweep);
      node.onclick = () => choose(job.id, sweep.token);
      return node;
    });
    renew(at("bk-sweeps"), ...nodes);
    at("bk-sweeps").hidden = nodes.length < 2;
  }

  // -- one sweep -----------------------------------------------------------------------------------------------------

  const SHAPES = { running: "half", retried: "half", resumed: "dot" };

  function key(shape, role, text, properties = {}) {
    const swatch = make("i", { className: "bk-swatch", data: { shape } });
    swatch.style.background = shape === "dashed" || shape === "solid" ? "none" : `var(--${role})`;
    swatch.style.borderColor = `var(--${role})`;
    swatch.style.setProperty("--full", `var(--${role})`);
    swatch.style.setProperty("--rest", `var(--cell-${role})`);
    return make("span", { className: "bk-key", ...properties }, swatch, make("span", { textContent: text }));
  }

  function detail(facts) {
    at("bk-detail").hidden = facts.sweep === "";
    if (facts.sweep === "") return;
    at("bk-map-note").textContent = facts.map;
    at("bk-legend").replaceChildren(...Object.entries(facts.counts)
      .filter(([name, count]) => count || !["retried", "failed", "resumed"].includes(name))
      .map(([name, count]) => {
        const shape = SHAPES[name] ?? "full";
        return key(shape, shape === "full" ? `cell-${name}` : name, `${name} ${count.toLocaleString("en")}`,
          { data: { state: name, count } });
      }));
    at("bk-merge-bar").style.width = `${100 * facts.merges.done}%`;
    at("bk-merge-text").textContent = facts.merges.text;
    at("bk-rate-note").replaceChildren(make("span", { textContent: facts.rate.measured }), ...(facts.rate.calibrated ? [key("dashed", "mark", `calibrated ${facts.rate.calibrated}`)] : []));
    at("bk-rate").style.visibility = facts.rate.drawn ? "" : "hidden";
    at("bk-memory-note").replaceChildren(...[
      key("full", "accent", "now"), key("solid", "ink", "peak"),
      ...(facts.memory.announced ? [key("dashed", "mark", `announced ${facts.memory.announced}`)] : []),
      ...(facts.memory.limit ? [key("solid", "bad", `limit ${facts.memory.limit}`)] : []),
    ]);
  }

  function log(events) {
    const nodes = events.map(([time, kind, text]) => make("li", { data: { kind } },
      make("time", { textContent: new Date(1000 * time).toLocaleTimeString([], { hour12: false }) }),
      make("b", { textContent: kind }), make("span", { textContent: text })));
    at("bk-log").replaceChildren(...nodes);
    at("bk-events").hidden = nodes.length === 0;
  }

  // -- failures ------------------------------------------------------------------------------------------------------

  const SORRY = "This part of the page failed, see the scheduler's log.";

  function failed(names) {
    for (const part of document.querySelectorAll("[data-part]")) {
      part.querySelector(":scope > .bk-failure")?.remove();
      if (names.includes(part.dataset.part)) part.prepend(make("p", { className: "bk-failure", textContent: SORRY }));
    }
    at("bk-failed-state").hidden = !names.includes("state");
    at("bk-failed-state").textContent = SORRY;
  }

  const SHOWN = { jobs, detail, log, failed };

  return {
    show(name, facts) {
      try {
        SHOWN[name](facts);
      } catch (error) {
        console.error(`bigkernel: ${name}`, error);
      }
    },
    start(model, roles) {
      choice = model;
      paints = roles;
      const found = model.document;
      for (const name of Object.keys(SHOWN)) {
        const tags = found.get_model_by_name(`facts-${name}`).tags;
        if (tags.length) this.show(name, tags[0]);
      }
      at("bk-theme").onclick = turn;
      at("bk-follow").onclick = () => choose();
      system.addEventListener("change", paint);
      found.on_event("connection_lost", () => { at("bk-cut").hidden = false; });
      found.on_event("client_reconnected", () => { at("bk-cut").hidden = true; });
      paint();
    },
    paint,
  };
})();
bigkernel.paint();
