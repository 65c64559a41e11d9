"use strict";
// The figures, and how plots are drawn: plain SVG, one element after the other.
const data = JSON.parse(document.getElementById("data").textContent);
const summary = data.summary;
const sets = summary.sets;
const $ = id => document.getElementById(id);

function make(name, attributes, ...children) {
  const inSvg = make.svg.has(name);
  const node = inSvg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
make.svg = new Set(["svg", "g", "line", "rect", "circle", "path", "text", "title", "polygon"]);

const colour = i => i === 0 ? "var(--c0)" : `var(--c${(i - 1) % 7 + 1})`;
const number = (x, digits) => x === null || x === undefined ? "–" : x.toFixed(digits);
const percent = (x, digits) => x === null || x === undefined ? "–" : (100 * x).toFixed(digits) + " %";
const range = n => [...Array(n).keys()];

// Round numbers that cut [0, most] into a few parts.
function ticks(most, parts) {
  const rough = most / parts || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= rough * 0.999);
  return range(Math.floor(most / step + 1e-9) + 1).map(i => +(i * step).toPrecision(6));
}

// Axes of a plot: gives the element and the two scales.
// `bend` is applied to heights.
function axes({ x: [x0, x1], most, xTicks, yTicks, xLabel, yFormat = String, bend = y => y, width = 520, height = 240 }) {
  const [left, right, top, bottom] = [56, width - 10, 12, height - 36];
  const X = x => left + (x - x0) / (x1 - x0 || 1) * (right - left);
  const Y = y => bottom - bend(y) / bend(most) * (bottom - top);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (const y of yTicks) {
    svg.append(make("line", { class: "axis", x1: left, x2: right, y1: Y(y), y2: Y(y) }));
    svg.append(make("text", { x: left - 7, y: Y(y) + 4, "text-anchor": "end" }, yFormat(y)));
  }
  for (const x of xTicks) svg.append(make("text", { x: X(x), y: bottom + 16, "text-anchor": "middle" }, String(x)));
  svg.append(make("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, xLabel));
  return { svg, X, Y, bottom };
}

function legend(entries) {
  const items = entries.map(([fill, name]) =>
    make("span", {}, make("span", { class: "dot", style: `background:${fill}` }), name));
  return make("div", { class: "legend hint" }, ...items);
}

// Lines through points [x, y, what the point says].
function lines(target, series, most, xLabel) {
  const longest = Math.max(1, ...series.flatMap(s => s.points.map(p => p[0])));
  const xTicks = ticks(longest, Math.min(longest, 10)).filter(Number.isInteger);
  const plot = axes({
    x: [0.7, longest + 0.3], most, xLabel, xTicks: xTicks.filter(x => x >= 1),
    yTicks: ticks(most, 4), yFormat: y => +(100 * y).toFixed(2) + " %",
  });
  for (const { fill, points } of series) {
    const path = points.map(([x, y], i) => `${i ? "L" : "M"}${plot.X(x)} ${plot.Y(y)}`).join("");
    plot.svg.append(make("path", { d: path, fill: "none", stroke: fill, "stroke-width": 2 }));
    for (const [x, y, what] of points) {
      plot.svg.append(make("circle", { cx: plot.X(x), cy: plot.Y(y), r: 3.2, fill }, make("title", {}, what)));
    }
  }
  target.replaceChildren(plot.svg, legend(series.map(s => [s.fill, s.name])));
}

const drafted = () => sets.map((set, i) => ({ i, name: set.name, fill: colour(i) })).filter(s => s.i > 0);
const guessing = row => drafted().filter(s => row.sets[s.i].drafted > 0);

function survival(row) {
  const series = guessing(row).map(s => {
    const f = row.sets[s.i];
    return { ...s, points: f.by_depth.map((d, i) => [i + 1, d.accepted / f.rounds, `${d.accepted} of ${f.rounds} rounds`]) };
  });
  const most = Math.max(0.04, ...series.flatMap(s => s.points.map(p => p[1]))) * 1.05;
  lines($("survival"), series, Math.min(1, most), "guesses");
}

function acceptance(row) {
  lines($("acceptance"), guessing(row).map(s => {
    const places = row.sets[s.i].by_depth.map((d, i) => [i + 1, d]).filter(([, d]) => d.offered > 0);
    return { ...s, points: places.map(([x, d]) => [x, d.accepted / d.offered, `${d.accepted} of ${d.offered}`]) };
  }), 1, "tokens ahead");
}

function histogram(row) {
  const series = guessing(row);
  const shares = series.map(s => row.sets[s.i].tokens_per_round.map(n => n / row.sets[s.i].rounds));
  const longest = Math.max(2, ...shares.map(s => s.length)) - 1;
  const plot = axes({
    x: [0.5, longest + 0.5], most: 1, xLabel: "tokens", bend: Math.sqrt,
    yTicks: [0.01, 0.05, 0.1, 0.25, 0.5, 1], yFormat: y => 100 * y + " %",
    xTicks: ticks(longest, Math.min(longest, 12)).filter(x => x >= 1 && Number.isInteger(x)),
  });
  const wide = 0.84 / Math.max(1, series.length);
  series.forEach((s, k) => shares[k].forEach((share, n) => {
    const x = plot.X(n - 0.42 + k * wide);
    const bar = { x, y: plot.Y(share), width: Math.max(1, plot.X(n - 0.42 + (k + 1) * wide) - x - 1), fill: s.fill };
    const what = `${s.name}: ${row.sets[s.i].tokens_per_round[n]} rounds gave ${n} (${percent(share, 1)})`;
    plot.svg.append(make("rect", { ...bar, height: plot.bottom - bar.y, rx: 1.5 }, make("title", {}, what)));
  }));
  const entries = series.map(s => {
    const f = row.sets[s.i];
    return [s.fill, `${s.name}: mean ${number(f.tokens_per_round_mean, 2)}, closed form ${number(f.expected_tokens_per_round, 2)}`];
  });
  $("histogram").replaceChildren(plot.svg, legend(entries));
}

// Bars that lie; each has parts [value, fill, what it says].
function bars(target, rows, most, xTicks, format, one) {
  const [left, width, step] = [Math.min(250, 12 + 6.6 * Math.max(...rows.map(r => r.name.length))), target.dataset.width || 520, 22];
  const height = 8 + rows.reduce((sum, r) => sum + step + (r.gap || 0), 0) + 22;
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const X = x => left + x / most * (width - left - 60);
  for (const x of xTicks) {
    svg.append(make("line", { class: "axis", x1: X(x), x2: X(x), y1: 4, y2: height - 20 }));
    svg.append(make("text", { x: X(x), y: height - 5, "text-anchor": "middle" }, format(x)));
  }
  let y = 8;
  for (const row of rows) {
    y += row.gap || 0;
    svg.append(make("text", { class: row.strong ? "strong" : "", x: left - 8, y: y + 13, "text-anchor": "end" }, row.name));
    let from = 0;
    for (const [value, fill, what] of row.parts) {
      const bar = { x: X(from), y: y + 2, width: Math.max(0, X(from + value) - X(from)), height: step - 6, fill };
      svg.append(make("rect", bar, make("title", {}, what)));
      from += value;
    }
    svg.append(make("text", { class: "strong", x: X(from) + 6, y: y + 13 }, row.end));
    y += step;
  }
  if (one) svg.append(make("line", { class: "one", x1: X(1), x2: X(1), y1: 4, y2: height - 20 }));
  target.replaceChildren(svg);
}

function split(row) {
  const parts = [["draft_s", "drafting", 2], ["verify_s", "passes", 6], ["sample_s", "picking", 3], ["other_s", "the rest", 0]];
  const rows = sets.map((set, i) => {
    const f = row.sets[i];
    const ms = key => f.tokens ? 1000 * f[key] / f.tokens : 0;
    return {
      name: set.name, strong: true, end: number(parts.reduce((sum, p) => sum + ms(p[0]), 0), 2) + " ms",
      parts: parts.map(([key, name, fill]) => [ms(key), colour(fill), `${name}: ${number(ms(key), 3)} ms a token`]),
    };
  });
  const most = Math.max(1e-6, ...rows.map(r => r.parts.reduce((sum, p) => sum + p[0], 0)));
  bars($("split"), rows, most, ticks(most, 4), x => x + " ms", false);
  $("split").append(legend(parts.map(([, name, fill]) => [colour(fill), name])));
}

function ratios() {
  const rows = [];
  for (const row of allRows()) {
    drafted().forEach((s, k) => {
      const ratio = row.sets[s.i].ratio_total;
      const what = `${row.category}, ${s.name}: ${number(ratio, 3)}, median of prompts ${number(row.sets[s.i].ratio_median, 3)}`;
      rows.push({
        name: k ? "" : row.category, strong: true, gap: k ? 0 : 6, end: number(ratio, 2) + " x",
        parts: [[ratio || 0, s.fill, what]],
      });
    });
  }
  if (!rows.length) return $("ratios").replaceChildren("There is no set of drafters.");
  const most = Math.max(1.1, ...rows.map(r => r.parts[0][0])) * 1.02;
  $("ratios").dataset.width = 1100;
  bars($("ratios"), rows, most, ticks(most, 6), String, true);
  $("ratios").append(legend(drafted().map(s => [s.fill, s.name])));
}

function widths() {
  const all = summary.widths;
  if (!all.length) return;
  const [least, most] = [all[0], Math.max(...all.map(w => w.ms_p90)) * 1.05];
  const longest = Math.max(2, all[all.length - 1].rows);
  const plot = axes({
    x: [0, longest + 0.5], most, xLabel: "rows", width: 1100, height: 260, yTicks: ticks(most, 5),
    xTicks: ticks(longest, 16).filter(x => x >= 1 && Number.isInteger(x)), yFormat: y => y + " ms",
  });
  if (least.rows === 1) {
    const end = Math.min(longest, most / least.ms_p50);
    const line = { x1: plot.X(1), y1: plot.Y(least.ms_p50), x2: plot.X(end), y2: plot.Y(end * least.ms_p50) };
    plot.svg.append(make("line", { class: "one", ...line }));
  }
  for (const w of all) {
    const x = plot.X(w.rows);
    const line = { x1: x, x2: x, y1: plot.Y(w.ms_p10), y2: plot.Y(w.ms_p90), stroke: "var(--c1)", "stroke-width": 1.5 };
    const what = `${w.rows} rows: ${number(w.ms_p50, 2)} ms (${number(w.ms_p10, 2)} to ${number(w.ms_p90, 2)}), ${w.count} passes, `
      + `${number(w.ms_p50 / least.ms_p50, 2)} times that of ${least.rows}`;
    plot.svg.append(make("line", line));
    const radius = 2.2 + 0.8 * Math.log10(w.count);
    plot.svg.append(make("circle", { cx: x, cy: plot.Y(w.ms_p50), r: radius, fill: "var(--c1)" }, make("title", {}, what)));
  }
  $("widths").replaceChildren(plot.svg);
}

const allRows = () => summary.rows.length > 1 ? [...summary.rows, summary.overall] : summary.rows;

function table() {
  const heads = ["category", "set", "prompts", "tokens", "tokens/round", "accepted", "tok/s", "ratio", "median", "drafting", "round p50, p95"];
  const body = [make("tr", {}, ...heads.map(h => make("th", {}, h)))];
  for (const row of allRows()) {
    row.sets.forEach((f, i) => {
      const dot = make("span", { class: "dot", style: `background:${colour(i)}` });
      const better = i === 0 || f.ratio_total === null ? "" : f.ratio_total >= 1.005 ? "gain" : f.ratio_total < 0.97 ? "loss" : "";
      const ms = f.round_ms ? `${number(f.round_ms.p50, 1)}, ${number(f.round_ms.p95, 1)} ms` : "–";
      const cells = [
        i ? "" : row.category, make("span", {}, dot, sets[i].name), row.prompts, f.tokens, number(f.tokens_per_round_mean, 2),
        percent(f.acceptance, 1), number(f.tok_s, 1), number(f.ratio_total, 2), number(f.ratio_median, 2),
        f.drafted ? percent(f.draft_share, 2) : "–", ms,
      ];
      const columns = cells.map((cell, k) => make("td", k === 7 || k === 8 ? { class: better } : {}, cell));
      body.push(make("tr", { class: (i ? "" : "first ") + (row === summary.overall ? "all" : "") }, ...columns));
    });
  }
  $("table").replaceChildren(...body);
}

function cards() {
  $("cards").append(...sets.map((set, i) => {
    const f = summary.overall.sets[i];
    const lossy = `${set.differing} of ${summary.prompts} texts are not the plain ones`;
    const notes = i === 0 ? [`${f.tokens} tokens, one a pass`] : !set.drafters.length ? ["plain decoding again: how much speed varies here"] : [
      `${number(f.tokens_per_round_mean, 2)} tokens a round, ${percent(f.acceptance, 1)} of the guesses accepted`,
      set.same_text ? "all texts equal plain ones" : lossy,
      `${set.drafters.join(" + ")}; ${set.auto ? "as many guesses as pay, " : "guesses "}up to ${set.draft_max}; ${set.accept}`,
    ];
    const value = i === 0 ? number(f.tok_s, 1) + " tok/s" : number(f.ratio_total, 2) + " x";
    return make("div", { class: "card", style: `border-left-color:${colour(i)}` }, make("span", { class: "name" }, set.name),
      make("b", {}, value), ...(f.fault ? [`guesses were lost: ${f.fault}`] : []), ...notes.map(n => make("small", {}, n)));
  }));
}

function about() {
  const s = summary;
  const choice = s.temperature === 0 ? "greedy" : `temperature ${+s.temperature.toFixed(3)}, seed ${s.seed}`;
  const most = s.n_predict < 0 ? "no limit of tokens" : `at most ${s.n_predict} tokens a turn`;
  const left = s.left_out ? ` (${s.left_out} left out)` : "";
  const times = s.repetitions === 1 ? "once each" : `${s.repetitions} times each, the median counts`;
  $("about").textContent = `${s.model.split("/").pop()} on ${s.place}, KV cache ${s.kv_type} · `
    + `${s.prompts} prompts${left} of ${s.file.split("/").pop()}, ${times} · ${choice}, ${most}`;
}

function rounds() {
  const row = allRows()[$("row").value];
  [survival, acceptance, histogram, split].forEach(draw => draw(row));
}

$("row").append(...allRows().map((row, i) => make("option", { value: i }, row.category)));
$("row").value = allRows().length - 1;
$("row").onchange = rounds;
$("theme").onclick = () => {
  const dark = getComputedStyle(document.documentElement).colorScheme;
  const now = dark === "dark" || (dark !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = now ? "light" : "dark";
};
[about, cards, table, ratios, rounds, widths].forEach(draw => draw());
