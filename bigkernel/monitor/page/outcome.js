"use strict";
// The results of a run: its state, scores, confusion, search, the facts of its fit, plan and settings.

const RATIOS = {
  whitening: "residual of the factorisation of the core",
  solution: "residual of the solve",
  eigen: "residual of the eigenpairs",
  orthogonality: "orthogonality of the eigenvectors",
  eigenfunctions: "residual of the eigenfunctions",
  eigenfunctions_orthogonality: "orthogonality of the eigenfunctions",
};
const ERRORS = {
  prediction_error: "estimated error of predictions, relative to their norm",
  error_of_sums: "of that, by rounding of the sums",
  error_of_solve: "of that, by rounding of the solve",
  error_of_blocks: "of that, by rounding of kernel values",
  excess: "relative excess of the objective, at most",
  iterations: "steps of conjugate gradients",
  core_condition: "condition number of the core",
  solved_condition: "condition number of the solved matrix",
  effective_dof: "effective degrees of freedom",
  rounding: "rounding of the moments: how far their eigenvalues reach below 0",
};
const FACTS = ["estimator", "kernel", "landmarks", "landmark_choice", "components", "alpha", "dtype", "sums",
  "transforms", "seed", "corpus", "model", "rows", "labelled_rows", "skipped_rows"];
const INCIDENTS = { retry: "retried", worker: "lost workers", repeat: "repeated", damage: "damaged" };
const readable = (name) => name.replaceAll("_", " ");
const number = (value) => {
  if (!isNumber(value)) return MISSING;
  if (Number.isInteger(value) || Math.abs(value) >= 1000) return Math.abs(value) < 1e9 ? count(value)
    : value.toExponential(2);
  return Math.abs(value) < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(3)));
};
const precise = (value) => (Math.abs(value) < 1000 ? value.toFixed(4) : number(value));
const signed = (value) => (isNumber(value) ? `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}` : MISSING);

// The results of all attempts by name, the latest of each.
function outcomeOf(run) {
  const figures = Object.assign({}, ...state.jobs.toReversed().map((job) => job.figures));
  for (const name of ["score", "tune", "fit"]) if (figures[name] === null
    || typeof figures[name] !== "object") delete figures[name];
  if (figures.tune && !(Array.isArray(figures.tune.records)
    && figures.tune.records.some((one) => isNumber(one?.score)))) delete figures.tune;
  return figures;
}

function tilesOf(figures) {
  const best = figures.tune ? candidates(figures.tune)[0] : undefined, score = figures.score ?? {};
  const spread = (value, unit = "") => (isNumber(value) ? `, ± ${Number(value.toPrecision(2))}${unit}` : "");
  const tiles = [];
  if (best) tiles.push([precise(best.score),
    `best ${figures.tune.score ?? "score"} by cross-validation${spread(best.standard_error)}`]);
  const rows = scoredRows(score);
  if (isNumber(score.error_percent)) {
    const totals = Array.isArray(score.confusion) ? score.confusion.map(sum) : [];
    const constant = totals.length ? ` (of a constant: ${
      (100 * (1 - Math.max(...totals) / sum(totals))).toFixed(1)} %)` : "";
    tiles.push([`${score.error_percent.toFixed(2)} %`,
      `error on ${rows}${spread(score.standard_error_percent, " %")}${constant}`]);
  }
  if (isNumber(score.r2)) tiles.push([score.r2.toFixed(4), `R² on ${rows} (perfect: 1)`]);
  if (isNumber(score.mse)) {
    const constant = score.targets === 1 && score.r2 < 1
      ? ` (of a constant: ${
      number(Math.sqrt(score.mse / (1 - score.r2)))})` : "";
    tiles.push([number(Math.sqrt(score.mse)), `root mean squared error on ${rows}, in the target's unit${constant}`]);
  }
  const error = figures.fit?.diagnostics?.prediction_error;
  if (isNumber(error)) tiles.push([error.toExponential(0),
    `estimated rounding error of predictions, relative (limit: ${number(state.run.error_limit)})`]);
  const sweeps = state.jobs.flatMap((job) => job.sweeps);
  if (sweeps.length) tiles.push([count(Math.max(...sweeps.map((sweep) => sweep.rows))), "rows"]);
  tiles.push([duration(sum(state.jobs.map((job) => job.elapsed_seconds))), state.jobs.filter(ran).length > 1
    ? "running time of all attempts" : "running time"]);
  return tiles;
}

const scoredRows = (score) => ({ training: "training rows", "held-out": "held-out rows" }[score.of] ?? "scored rows");

function outcome(run, figures) {
  const kept = run.segments ? `${count(run.segments_done)} of ${count(run.segments)} segments are kept`
    : "nothing was kept";
  const tries = state.jobs.filter(ran).length, attempts = tries > 1 ? `in ${count(tries)} attempts` : "in 1 attempt";
  const summary = run.state === "finished" ? attempts : kept;
  const nodes = [div("line", badge(run.state, run.state),
    text("span", summary), text("span", run.path, "note")),
    div("tiles", ...tilesOf(figures).map(([value, meaning]) =>
      div("", text("b", value), text("span", meaning, "soft"))))];
  if (!["finished", "running"].includes(run.state) && run.command) nodes.push(text("p", "To continue:"),
    text("pre", run.command));
  return nodes;
}

// -- scores -------------------------------------------------------------------------------------------------------

function results(figures) {
  const nodes = [text("h2", "Results")];
  if (figures.tune) nodes.push(...search(figures.tune));
  const score = figures.score;
  if (!score || !isNumber(score.rows)) return nodes;
  const judged = {
    training: `Scored on ${count(score.rows)} of the training rows: not an estimate for new rows.`,
    "held-out": `Scored on ${count(score.rows)} labelled rows of ${score.corpus}, held out from the fit.` };
  nodes.push(text("p", judged[score.of] ?? `Scored on ${count(score.rows)} labelled rows of ${score.corpus}.`));
  if (isNumber(score.log_loss)) {
    const guess = Array.isArray(score.classes) ? ` (equal probabilities: ${number(Math.log(score.classes.length))})` : "";
    nodes.push(text("p", `Probabilities: log-loss ${number(score.log_loss)} nats${guess}, Brier score ${
      number(score.brier)} (0 to 2), calibration error ${number(score.calibration_error)} (0 to 1).`));
  }
  if (!Array.isArray(score.classes)) return [...nodes, ...residuals(score)];
  return [...nodes, div("beside", ...confusion(score), ...worst(score))];
}

function confusion(score) {
  if (!Array.isArray(score.confusion)) {
    if (!Array.isArray(score.confused) || !score.confused.length) return [];
    return [div("", text("h3", "Most frequent confusions"),
      table(["true", "predicted", "rows"], score.confused.slice(0, 20)))];
  }
  const classes = score.classes.map(String), rows = score.confusion, totals = rows.map((row) => Math.max(1, sum(row)));
  const chart = matrix(classes, classes, (i, j) => ({
    label: classes.length <= 20 && rows[i][j] ? count(rows[i][j]) : "",
    share: i === j ? rows[i][j] / totals[i] : Math.sqrt(rows[i][j] / totals[i]),
    title: `${count(rows[i][j])} rows of ${classes[i]} are predicted as ${classes[j]}`,
  }));
  return [div("", text("h3", "Confusion"), chart, note("true class (down) by predicted class (across)"))];
}

function worst(score) {
  const { row = [], true: truth = [], predicted = [], margin = [], images } = score.worst ?? {};
  if (!row.length) return [];
  const lines = row.map((id, i) => [count(id), String(truth[i]), String(predicted[i]), signed(margin[i])]);
  const rows = images?.data?.length
    ? pictures(images, lines.slice(0, images.data.length)
      .map(([id, is, guess, f]) => [`${is} → ${guess}`, f, `row ${id}`]))
    : table(["row", "true class", "predicted", "margin"], lines, 10);
  return [div("", text("h3", "Worst-classified rows"), rows,
    note("margin: f of the true class less the largest other f"))];
}

function residuals(score) {
  const counts = score.residuals;
  if (!Array.isArray(counts) || !counts.length) return [];
  const names = counts.map((rows, i) => `${count(rows)} rows in bar ${i + 1} of ${counts.length}`);
  return [...scatter(score), text("h3", "Errors of all rows"), columns("results", counts,
    { role: "accent", names, show: (rows) => `${count(rows)} rows`,
      axis: ["−4 (too high)", "4 (too low)"] }),
    note(`target − prediction, in units of the root mean squared error on training rows (${
      number(score.residual_unit)}); the outer bars include larger errors`)];
}

// Points (actual, predicted) in a square whose diagonal is a perfect prediction.
function scatter(score) {
  const { row = [], actual = [], predicted = [] } = score.sample ?? {};
  const points = row.map((id, i) => [id, actual[i], predicted[i]]).filter((point) => point.every(isNumber));
  if (!points.length) return [];
  const targets = points.map(([, y]) => y), least = Math.min(...targets), most = Math.max(...targets);
  const margin = 0.1 * (most - least) || 1, low = least - margin, high = most + margin;
  const left = 74, side = Math.min(360, at("results").clientWidth - 34 - left - 6);
  const place = (value) => (side * Math.max(0, Math.min(1, (value - low) / (high - low))));
  const outside = points.filter(([, , f]) => f < low || f > high).length;
  const frame = { x: left, y: 4, width: side, height: side, fill: "none", stroke: "var(--line)" };
  const nodes = [svg("rect", frame), svg("line", { x1: left, y1: side + 4, x2: left + side, y2: 4,
    style: "stroke: var(--mark)", "stroke-width": 1.5, "stroke-dasharray": "6 4" })];
  for (const [value, anchor] of [[least, "start"], [most, "end"]]) {
    nodes.push(svg("text", { x: left - 6, y: side + 8 - place(value), "text-anchor": "end" }, number(value)),
      svg("text", { x: left + place(value), y: side + 20, "text-anchor": anchor }, number(value)));
  }
  nodes.push(svg("text", { x: left + side / 2, y: side + 20, "text-anchor": "middle", class: "value" }, "actual"),
    svg("text", { x: left - 6, y: side / 2, "text-anchor": "end", class: "value" }, "predicted"));
  nodes.push(...points.map(([id, y, f]) => hover(svg("circle", { cx: left + place(y), cy: side + 4 - place(f), r: 2.5,
    fill: "var(--accent)", "fill-opacity": 0.6 }), `row ${count(id)}: actual ${number(y)}, predicted ${number(f)}`)));
  const target = score.targets > 1 ? `, first of ${count(score.targets)} targets` : "";
  const beyond = outside ? `; at the edge: predictions outside the frame (${count(outside)})` : "";
  return [text("h3", "Predicted against actual"), drawing("results", side + 26, "predicted against actual", ...nodes),
    note(`${count(points.length)} of ${count(score.rows)} ${scoredRows(score)}, sampled by a hash of their ids${target}; `
      + `dashed: predicted = actual${beyond}`)];
}

// -- search -------------------------------------------------------------------------------------------------------

function candidates(tune) {
  const valid = tune.records.filter((one) => one !== null && typeof one === "object" && isNumber(one.score));
  return valid.sort((a, b) => (a.rank ?? 0) - (b.rank ?? 0));
}

function search(tune) {
  const all = candidates(tune), label = String(tune.score ?? "score");
  const varied = (name) => new Set(all.map((one) => plainly(one[name]))).size > 1;
  const names = Object.keys(all[0]).filter((name) => varied(name)
    && !["score", "standard_error", "rank", "chosen", "prediction_error", "converged"].includes(name));
  const lines = all.slice(0, 20).map((one) =>
    [...names.map((name) => (isNumber(one[name]) ? number(one[name]) : plainly(one[name]))),
    precise(one.score), number(one.standard_error), one.chosen ? "chosen" : ""]);
  const nodes = (Array.isArray(tune.edges) ? tune.edges : [])
    .map((edge) => text("p", `The best candidate lies at an edge of the grid. ${plainly(edge)}`, "failure"));
  const best = table([...names.map(readable), label, "±", ""], lines, 10);
  const caption = `the best of ${count(tune.candidates)} candidates, means over ${count(tune.folds)} folds `
    + "± their standard error";
  nodes.push(div("beside", div("", best, note(caption)), ...scoreMap(all, names, label)));
  return nodes;
}

// Scores by the two numbers with most values, each the best over the others. Colours end at three times the best
// error; where no perfect score is known, at the median.
function scoreMap(all, names, label) {
  const values = (name) => [...new Set(all.map((one) => one[name]))].filter(isNumber).sort((a, b) => a - b);
  const two = names.filter((name) => values(name).length > 1).sort((a, b) =>
    values(b).length - values(a).length).slice(0, 2);
  if (two.length < 2) return [];
  const [across, down] = two.includes("alpha") ? ["alpha", two.find((name) => name !== "alpha")] : two;
  const columnsOf = values(across), rows = values(down), scores = all.map((one) => one.score).sort((a, b) => a - b);
  const high = scores.at(-1), perfect = label.startsWith("neg_") ? 0 : 1, known = perfect > high;
  const limit = known ? perfect - 3 * (perfect - high) : scores[Math.floor(scores.length / 2)];
  const low = Math.max(scores[0], limit);
  const chart = matrix(rows.map(number), columnsOf.map(number), (i, j) => {
    const here = all.filter((one) => one[down] === rows[i] && one[across] === columnsOf[j]).map((one) => one.score);
    if (!here.length) return { label: MISSING, share: 0, title: "not among the candidates of this page", best: false };
    const score = Math.max(...here);
    return { label: score < low ? "" : number(score), share: (score - low) / Math.max(high - low, 1e-12),
      best: score === high,
      title: `${down} ${number(rows[i])}, ${across} ${number(columnsOf[j])}: ${label} ${precise(score)}` };
  }, columnsOf.length > 5 ? "matrix many" : "matrix");
  const scale = make("i", { data: { shape: "scale" } });
  scale.style.background = `linear-gradient(to right, ${[0, 0.5, 1].map((share) => shade(share)).join(", ")})`;
  const below = known ? "more than 3 times the best error" : "worse than half of the candidates";
  return [div("", text("h3", `${label} by ${readable(down)} (down) and ${readable(across)} (across)`), chart,
    div("keys", make("span", {}, `${number(low)} `, scale, `${number(high)}, the best (framed)`),
      low > scores[0] ? text("span", `grey: below ${number(low)}, ${below}`, "soft") : ""))];
}

// -- the fit, the plan and the settings ---------------------------------------------------------------------------

function fit(figures, run) {
  const { diagnostics = {}, sweep = {}, rounds } = figures.fit;
  const pairs = FACTS.map((name) => [readable(name), figures.fit[name]]);
  const { alpha, rank, landmarks, trace_error: lost } = figures.fit;
  if (isNumber(rank)) pairs.push(["rank", isNumber(landmarks) ? `${count(rank)} of ${count(landmarks)}` : rank]);
  if (isNumber(lost)) pairs.push(["trace error", `${number(100 * lost)} % of the trace of the kernel matrix`]);
  if (Array.isArray(rounds)) pairs.push(["rounds of pseudo-labels", rounds.length]);
  for (const name of ["pilot", "swept_again"]) if (sweep?.[name]) pairs.push([readable(name), sweep[name]]);
  const nodes = [text("h2", "Fit")];
  const entries = Object.entries(diagnostics ?? {});
  if (entries.length) {
    const totals = { effective_dof: rank, duplicate_landmarks: landmarks };
    const limits = { prediction_error: run.error_limit, excess: sweep?.tol, core_condition: 2 ** 52,
      solved_condition: 2 ** 52, rounding: isNumber(alpha) ? 100 * alpha : undefined }; // the limits of warnings
    for (const name of Object.keys(RATIOS)) limits[name] = run.residual_limit;
    const lines = entries.map(([name, value]) => {
      const limit = limits[name], off = name in RATIOS && isNumber(value) && value > limit;
      return [RATIOS[name] ?? ERRORS[name] ?? readable(name), { label: number(value), off },
        isNumber(limit) ? `at most ${number(limit)}` : isNumber(totals[name]) ? `of ${count(totals[name])}` : ""];
    });
    if (lines.some(([, value]) => value.off)) nodes.push(text("p",
      "This fit is unreliable: a residual exceeds rounding error.", "failure"));
    nodes.push(div("beside", facts(pairs), table(["check of the numbers", "value", "limit"], lines)),
      note("residuals: in units of the rounding error of a stable method; condition numbers: the limit is float64's; "
        + "rounding of the moments: the limit is 100 alpha"));
  } else nodes.push(facts(pairs));
  if (!figures.score && !figures.tune) nodes.push(note("No rows were scored: --score CORPUS adds errors to this page."));
  if (Array.isArray(figures.fit.metric?.importances)) nodes.push(...metric(figures.fit.metric));
  const steps = sweep?.excess_by_step;
  if (Array.isArray(steps) && steps.length && steps.every((value) => value > 0)) {
    const floor = Math.min(...steps, sweep.tol ?? 1), logs = steps.map((value) => Math.log10(value / floor) + 0.2);
    nodes.push(text("h3", "Steps of conjugate gradients"),
      columns("fit", logs, { role: "accent", names: steps.map((value, i) => `step ${i + 1}: ${number(value)}`),
      show: (value) => (floor * 10 ** (value - 0.2)).toExponential(0), axis: ["step 1", `step ${steps.length}`],
      marks: isNumber(sweep.tol) ? [{ value: Math.log10(sweep.tol / floor) + 0.2, role: "mark", dashed: true }] : [] }),
    note("relative excess of the objective; dashed: the tolerance"));
  }
  return nodes;
}

function metric({ features, importances, rounds, image, count: all }) {
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const lines = features.map((name, i) => [name, percent(importances[i])]);
  const shown = lines.length < all ? `the ${lines.length} largest of ${count(all)} features` : `all ${count(all)} features`;
  const gain = rounds?.length > 1 ? `; held-out error, as a share of the targets' variance: ${number(rounds[0])
    } with equal importances, ${number(rounds.at(-1))} with these` : "";
  return [text("h3", "What the learned metric sees"), div("beside", table(["feature", "importance"], lines, 10),
    ...(image?.data?.length ? [pictures(image, [["importance of every pixel"]])] : [])),
    columns("fit", importances, { role: "accent", names: lines.map(([name, share]) => `${name}: ${share}`),
      show: percent, axis: [features[0], features.at(-1)] }),
    note(`importance: share of the trace of the metric; ${shown}${gain}`)];
}

function plan(job) {
  const onGpu = job.sweeps.some((sweep) => sweep.plan.device_bytes);
  const header = ["sweep", "state", "rows", "segments", "arithmetic", "read", "memory", ...(onGpu ? ["GPU memory"] : []),
    "time", "rate", "workers", "incidents"];
  const lines = job.sweeps.map((sweep) => {
    const highest = (name) => Math.max(0, ...Object.values(sweep.workers).map((worker) => worker[name] ?? 0));
    const peak = highest("peak_bytes"), ofGpu = highest("device_peak_bytes"), plannedThere = sweep.plan.device_bytes;
    const rows = rowsDone(sweep), planned = sweep.planned_bytes, resumed = sweep.resumed.length;
    const incidents = Object.entries(sweep.incidents)
      .map(([kind, times]) => `${count(times)} ${INCIDENTS[kind] ?? kind}`);
    return [
      sweep.what,
      sweep.state,
      { label: count(rows), note: rows === sweep.rows ? "" : `of ${count(sweep.rows)}` },
      { label: count(sweep.segments.merged + sweep.segments.published),
        note: resumed ? `${count(resumed)} resumed` : "" },
      measure(sweep.plan.flops, "FLOP"),
      size(sweep.plan.bytes_read),
      { label: peak ? size(peak) : MISSING, note: planned ? `of ${size(planned)}` : "", off: 0 < planned
        && planned < peak },
      ...(onGpu ? [{ label: ofGpu ? size(ofGpu) : MISSING, note: plannedThere ? `of ${size(plannedThere)}` : "",
        off: 0 < plannedThere && plannedThere + (sweep.plan.kept_bytes ?? 0) < ofGpu }] : []),
      duration(sweep.elapsed_seconds),
      rate(sweep.flops_per_second),
      count(Object.keys(sweep.workers).length),
      incidents.join(", ") || MISSING,
    ];
  });
  return [text("h2", "Sweeps"), table(header, lines, 12), note(`memory: highest peak of a worker process, and the plan${
    onGpu ? "; GPU memory: of arrays of a process, and the plan without kept blocks" : ""}`)];
}

function repeat(run) {
  const nodes = [text("h2", "Command and settings")];
  if (run.command) nodes.push(text("pre", run.command));
  const folded = run.sweeps.filter((sweep) => Object.keys(sweep.settings).length).map((sweep) => {
    const pairs = Object.entries(sweep.settings);
    const kept = `${count(sweep.segments_done)} of ${count(sweep.segments)} segments kept`;
    const summary = `${sweep.name}: ${sweep.state}, ${kept}, ${pairs.length} settings that change its result`;
    return make("details", {}, text("summary", summary), facts(pairs));
  });
  nodes.push(...folded.slice(0, 6));
  if (folded.length > 6) nodes.push(make("details", {}, text("summary", `${count(folded.length - 6)} more sweeps`),
    ...folded.slice(6)));
  if (run.gaps.length) nodes.push(text("h3", "What could not be read"),
    ...run.gaps.map((gap) => text("p", gap)));
  return [...nodes, text("div", `written by bigkernel ${run.version} at ${moment(state.time)}`, "note")];
}
