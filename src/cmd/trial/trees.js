"use strict";
// The browser of rounds: an answer whose tokens have the colours of those who guessed them, and the tree of one round.
const view = { answer: null, round: 0 };
const ownerColour = owner => `var(--c${owner % 7 + 1})`;
const token = id => data.tokens[id] ?? "";
const visible = text => text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "␣");
const cut = (text, most) => [...text].length > most ? [...text].slice(0, most - 1).join("") + "…" : text;

// Guesses that became text: the path without its anchor, as far as the text goes.
const accepted = round => Math.min(round.path.length - 1, round.used);

// The owner of each token a round gave, null for the model's own.
const owners = round => range(round.used).map(i => i < accepted(round) ? round.nodes[round.path[i + 1]][2] : null);

function showText() {
  const spans = [];
  view.answer.rounds.forEach((round, r) => {
    const whose = owners(round);
    round.tokens.slice(0, round.used).forEach((id, i) => {
      const style = whose[i] === null ? "" : `background:color-mix(in srgb, ${ownerColour(whose[i])} 26%, transparent)`;
      const span = make("span", { style, "data-round": r, title: `round ${r + 1}` }, token(id));
      span.onclick = () => go(r);
      spans.push(span);
    });
  });
  $("text").replaceChildren(...spans);
}

function facts(round) {
  const n = round.nodes.length - 1;
  const [draft, pass, pick] = round.us.map(us => number(us / 1000, us < 1000 ? 3 : 1));
  const kept = accepted(round);
  const beyond = round.path.length - 1 - kept;
  const past = beyond ? `, ${beyond} more beyond the end of the text` : "";
  const many = (n, what) => `${n} ${what}${n === 1 ? "" : what === "guess" ? "es" : "s"}`;
  return `round ${view.round + 1} of ${view.answer.rounds.length}: ${many(n, "guess")}, ${kept} accepted${past}, ${many(round.used, "token")} · `
    + `drafting ${draft} ms, pass of ${many(n + 1, "row")} ${pass} ms, picking ${pick} ms`;
}

// Places of the nodes: the depth across, the leaves one below the other, a parent beside the middle of its children.
function places(nodes) {
  const children = nodes.map(() => []);
  nodes.forEach(([, parent], i) => i && children[parent].push(i));
  const depth = [], row = [];
  let next = 0;
  const place = (i, d) => {
    depth[i] = d;
    children[i].forEach(c => place(c, d + 1));
    row[i] = children[i].length ? (row[children[i][0]] + row[children[i].at(-1)]) / 2 : next++;
  };
  place(0, 0);
  return { depth, row, leaves: next };
}

function tree(round) {
  const [W, H, stepX, stepY] = [96, 38, 122, 48];
  const { depth, row, leaves } = places(round.nodes);
  const kept = accepted(round);
  const rank = new Map(round.path.map((node, i) => [node, i]));
  const x = i => 6 + depth[i] * stepX, y = i => 6 + row[i] * stepY;
  const deepest = Math.max(...depth), last = round.path.at(-1);
  const own = round.used === round.tokens.length;
  // The model's own token goes behind the path; below everything if a wrong guess stands there.
  const taken = own && round.nodes.some(([, parent], i) => i && parent === last);
  const ownPlace = [6 + (depth[last] + 1) * stepX, taken ? 6 + leaves * stepY : y(last)];
  const width = Math.max(deepest, own ? depth[last] + 1 : 0) * stepX + W + 12;
  const height = (leaves + (taken ? 1 : 0)) * stepY + 4;
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  const curve = (x1, y1, x2, y2) => `M${x1} ${y1}C${x1 + 14} ${y1} ${x2 - 14} ${y2} ${x2} ${y2}`;
  const edge = (from, to, rest) =>
    svg.append(make("path", { d: curve(x(from) + W, y(from) + H / 2, to[0], to[1] + H / 2), fill: "none", ...rest }));
  const box = ([left, top], text, note, what, style, outer) => svg.append(make("g", outer,
    make("rect", { x: left, y: top, width: W, height: H, rx: 7, ...style }),
    make("text", { class: "token", x: left + W / 2, y: top + 16, "text-anchor": "middle" }, cut(visible(text), 11)),
    make("text", { x: left + W / 2, y: top + 31, "text-anchor": "middle" }, note), make("title", {}, what)));

  round.nodes.forEach(([, parent, owner], i) => {
    const on = rank.has(i) && rank.get(i) <= kept;
    if (i) edge(parent, [x(i), y(i)], on ? { stroke: ownerColour(owner), "stroke-width": 2.5 } : { stroke: "var(--line)", "stroke-width": 1.5 });
  });
  if (own) edge(last, ownPlace, { stroke: "var(--text)", "stroke-width": 1.5, "stroke-dasharray": "4 3" });
  const names = sets[view.answer.set].drafters;
  round.nodes.forEach(([id, , owner, score], i) => {
    if (i === 0) {
      const style = { fill: "var(--back)", stroke: "var(--text)", "stroke-width": 1.5 };
      return box([x(0), y(0)], token(id), "anchor", `anchor: ${JSON.stringify(token(id))}, id ${id}`, style, {});
    }
    const place = rank.get(i);
    const fate = place === undefined ? "rejected" : place <= kept ? "accepted" : "beyond the end";
    const share = score === null ? "–" : Math.exp(score) < 0.001 ? "< 0.1 %" : percent(Math.exp(score), 1);
    const fill = fate === "accepted" ? `color-mix(in srgb, ${ownerColour(owner)} 24%, var(--panel))` : "var(--panel)";
    const style = { fill, stroke: ownerColour(owner), "stroke-width": fate === "accepted" ? 2.5 : 1.2 };
    if (fate === "beyond the end") style["stroke-dasharray"] = "3 3";
    const what = `${JSON.stringify(token(id))}, id ${id}: ${fate}; guessed by ${names[owner] ?? owner} with ${share} for its path`;
    box([x(i), y(i)], token(id), share, what, style, fate === "accepted" ? {} : { class: "dim" });
  });
  if (own) {
    const id = round.tokens.at(-1);
    const style = { fill: "none", stroke: "var(--text)", "stroke-width": 1.5, "stroke-dasharray": "4 3" };
    box(ownPlace, token(id), "the model’s", `the model’s own token: ${JSON.stringify(token(id))}, id ${id}`, style, {});
  }
  return svg;
}

function go(r) {
  const all = view.answer.rounds;
  view.round = Math.max(0, Math.min(all.length - 1, r));
  const round = all[view.round];
  $("round").value = view.round + 1;
  $("facts").textContent = facts(round);
  $("tree").replaceChildren(tree(round));
  const pane = $("text");
  for (const span of pane.children) span.classList.toggle("here", +span.dataset.round === view.round);
  const here = pane.querySelector(".here");
  if (here && (here.offsetTop < pane.offsetTop + pane.scrollTop || here.offsetTop > pane.offsetTop + pane.scrollTop + pane.clientHeight - 30)) {
    pane.scrollTop = here.offsetTop - pane.offsetTop - 60;
  }
}

function open(i) {
  view.answer = data.answers[i];
  $("prompt").textContent = view.answer.prompt;
  $("round").max = view.answer.rounds.length;
  showText();
  const guessed = view.answer.rounds.findIndex(round => accepted(round) > 1 && accepted(round) < round.nodes.length - 1);
  const names = sets[view.answer.set].drafters.map((name, i) =>
    make("span", {}, make("span", { class: "dot", style: `background:${ownerColour(i)}` }), name));
  const marks = "Filled: accepted. Faint: rejected, or beyond the end of the text (dashed). The share is that of the path in the drafter’s eyes.";
  $("owners").replaceChildren(...names, marks);
  go(guessed < 0 ? 0 : guessed);
}

// The answers of a set that have rounds; the same one stays chosen where both sets have it.
function list() {
  const kept = view.answer && `${view.answer.id} ${view.answer.turn} ${view.answer.row}`;
  const mine = data.answers.map((a, i) => [a, i]).filter(([a]) => a.set === +$("set").value && a.rounds.length);
  $("answer").replaceChildren(...mine.map(([a, i]) => {
    const name = `${summary.rows[a.row].category} ${a.id}, turn ${a.turn}: ${cut(a.prompt.replace(/\s+/g, " "), 44)}`;
    return make("option", { value: i }, name);
  }));
  // At first the answer whose guesses did best.
  const best = ([a]) => a.rounds.reduce((sum, round) => sum + round.used, 0) / a.rounds.length;
  const same = mine.find(([a]) => `${a.id} ${a.turn} ${a.row}` === kept) ?? mine.toSorted((a, b) => best(b) - best(a))[0];
  if (!same) return;
  $("answer").value = same[1];
  open(same[1]);
}

const browsable = drafted().filter(s => data.answers.some(a => a.set === s.i && a.rounds.length));
if (browsable.length) {
  $("set").append(...browsable.map(s => make("option", { value: s.i }, s.name)));
  $("set").onchange = list;
  $("answer").onchange = () => open(+$("answer").value);
  $("round").oninput = () => go($("round").value - 1);
  $("back").onclick = () => go(view.round - 1);
  $("forth").onclick = () => go(view.round + 1);
  list();
} else {
  $("browser").hidden = true;
}
