// Where speculation pays: expected length against acceptance β, with the live classes and the explored request on it.

import { empty, frame, linear, logarithmic, path, picture, xAxis, yAxis } from "./chart.js";
import { $, h, nothing, put, row, s, say, text } from "./dom.js";
import { count, percent, seconds } from "./format.js";
import { places } from "./labels.js";

const LEVELS = [["pay2", 0.2], ["pay3", 0.4], ["pay4", 0.6]];
const LABELS = 12;
const POLICY = {
  cautious: " The policy is cautious: a class speculates only if the lower bound of its saving is above the margin.",
  rules: " The policy decides by its rules alone: the map shows where speculation would pay.",
};

export function drawMap(state, pair, explored) {
  const map = state.map.find((found) => found.pair === pair);
  if (!map || map.unknown) {
    put("map", empty(map?.unknown ?? "No data yet."));
    put("map-legend");
    put("map-rows", nothing(5, "No map."));
    return;
  }
  say("map-lead", `Expected length against acceptance β with ${count(map.load)} in flight per server, computed by the functions of the decision` +
    `${map.level === "prior" ? ", from priors because nothing is measured yet" : ""}: ${seconds(map.plain_tpot_s)} per plain token, ` +
    `${seconds(map.step_base_s)} + γ · ${seconds(map.step_per_draft_token_s)} per speculative step, γ up to ${map.longest_draft}.` +
    (POLICY[map.decision] ?? ""));
  put("map-legend", map.classes.some((point) => point.ruled) ? [h("span", null, "□ decided by rule, not by its place on the map")] : []);
  put("map", chart(map, explored?.pair === pair ? explored : null));
  put("map-rows", map.classes.length ? map.classes.map((point) => figures(point, map.margin)) : nothing(5, "No class in the last 15 minutes."));
}

const figures = (point, margin) =>
  row(point.request_class, count(point.output_tokens), `${percent(point.acceptance)}${point.measured ? "" : " expected"}`,
    seconds(point.saving_s), pays(point, margin));

function pays(point, margin) {
  const badge = (good, what) => h("span", { class: `badge ${point.measured ? (good ? "yes" : "no") : "quiet"}` }, what);
  if (point.ruled) return h("td", { class: "why" }, badge(point.ruled === "speculative", `${point.ruled} by rule`), `: ${point.why}`);
  return text(badge(point.saved > margin, `${point.saved > margin ? "yes" : "no"}${point.measured ? "" : ", expected"}`));
}

function chart(map, explored) {
  const area = frame($("map"), 330);
  const { lengths, acceptances } = map;
  const x = logarithmic([lengths[0], lengths.at(-1)], [area.left, area.right]);
  const y = linear([0, 1], [area.bottom, area.top]);
  const free = map.classes.filter((point) => !point.ruled && point.saved > map.margin).map((point) => point.request_class);
  const ruled = map.classes.filter((point) => point.ruled).map((point) => `${point.request_class} ${point.ruled}`);
  const label = `Break-even map. Speculation pays for ${free.join(", ") || "no live class"}.` +
    (ruled.length ? ` Decided by rule: ${ruled.join(", ")}.` : "");
  const outline = region(map, map.margin);
  return picture(area, label,
    s("rect", { class: "lose", x: area.left, y: area.top, width: area.right - area.left, height: area.bottom - area.top }),
    shape(outline, "pay1", x, y), LEVELS.map(([style, level]) => shape(region(map, Math.max(level, map.margin)), style, x, y)),
    outline.map((part) => s("path", { class: "edge", d: path(edge(part, map).map(([tokens, beta]) => [x(tokens), y(beta)])) })),
    xAxis(area, x, [4, 10, 20, 50, 100, 200, 500, 1000], String, "expected output tokens"),
    yAxis(area, y, [0, 0.25, 0.5, 0.75, 1], (tick) => percent(tick)),
    key(area), points(map, x, y, area, explored));
}

const clamp = (value, list) => Math.min(Math.max(value, list[0]), list.at(-1));

/** Per acceptance the stretch of lengths with more than `level` saved, between grid points by interpolation. */
function region(map, level) {
  const parts = [];
  let open = null;
  map.saved.forEach((row, index) => {
    const stretch = stretchOf(row, map.lengths, level);
    if (stretch && !open) parts.push((open = []));
    if (stretch) open.push([map.acceptances[index], ...stretch]);
    else open = null;
  });
  return parts;
}

function stretchOf(saved, lengths, level) {
  const inside = saved.map((value) => value > level);
  const first = inside.indexOf(true);
  if (first < 0) return null;
  const last = inside.lastIndexOf(true);
  const cross = (from, to) => {
    const share = (level - saved[from]) / (saved[to] - saved[from]);
    return Math.exp(Math.log(lengths[from]) + share * (Math.log(lengths[to]) - Math.log(lengths[from])));
  };
  return [first ? cross(first - 1, first) : lengths[0], last < saved.length - 1 ? cross(last, last + 1) : lengths.at(-1)];
}

const shape = (parts, style, x, y) =>
  parts.map((part) => s("path", { class: style, d: `${path([
    ...part.map(([beta, from]) => [x(from), y(beta)]), ...part.toReversed().map(([beta, , to]) => [x(to), y(beta)])])}Z` }));

/** The break-even line itself, down the region's right border and up its left one: without the map's own borders. */
function edge(part, map) {
  const [low, high] = [map.lengths[0], map.lengths.at(-1)];
  const right = part.filter(([, , to]) => to < high).map(([beta, , to]) => [to, beta]).reverse();
  const left = part.filter(([, from]) => from > low).map(([beta, from]) => [from, beta]);
  const lowest = part[0][0];
  const closes = lowest > map.acceptances[0];
  return [...(closes && part[0][2] >= high ? [[high, lowest]] : right), ...(closes && part[0][1] <= low ? [[low, lowest]] : []), ...left];
}

const key = (area) =>
  s("g", null, [["pay1", "pays"], ...LEVELS.map(([style, level]) => [style, `${100 * level} %`])].map(([style, name], index) => [
    s("rect", { class: style, x: area.left + 8 + index * 58, y: area.bottom - 20, width: 11, height: 11, rx: 2 }),
    s("text", { class: "tick", x: area.left + 23 + index * 58, y: area.bottom - 10 }, index === 3 ? `${name} saved` : name),
  ]));

/** The classes, the busiest first, and before them all the request that was asked about: each with its name. */
function points(map, x, y, area, explored) {
  const shown = map.classes.toSorted((one, other) => other.requests - one.requests).slice(0, LABELS);
  const mine = explored ? [{ request_class: "your request", output_tokens: explored.tokens, acceptance: explored.acceptance, mine: true }] : [];
  const all = [...mine, ...shown];
  const at = all.map((point) => [x(clamp(point.output_tokens, map.lengths)), y(point.acceptance)]);
  const names = all.map((point) => point.request_class);
  const spots = places(names, at, { left: area.left, right: area.width, top: 0, bottom: area.bottom - 22 });
  return [spots.map((spot, index) => lead(spot, at[index])), all.map((point, index) => {
    const speculates = point.ruled ? point.ruled === "speculative" : point.saved > map.margin;
    return s("g", { class: point.mine ? null : speculates ? "c2" : "c0" },
      point.mine ? s("path", { class: "you", d: star(...at[index]) }) : mark(point, ...at[index]),
      name(spots[index], names[index], point.mine));
  })];
}

const lead = (spot, [x, y]) => spot?.away && s("line", { class: "lead", x1: x, y1: y, x2: spot.x, y2: spot.y - 4 });
const name = (spot, words, strong) =>
  spot && s("text", { class: strong ? "halo strong" : "halo", x: spot.x, y: spot.y, "text-anchor": spot.anchor }, words);

/** A dot where the map decides, a square where a rule does. */
function mark(point, x, y) {
  const size = 4 + Math.min(5, Math.sqrt(point.requests) / 6);
  const style = point.measured ? "dot" : "dot guess";
  if (!point.ruled) return s("circle", { class: style, cx: x, cy: y, r: size }, s("title", null, point.request_class));
  return s("rect", { class: `${style} ruled`, x: x - size, y: y - size, width: 2 * size, height: 2 * size },
    s("title", null, `${point.request_class}: ${point.ruled} by rule, ${point.why}`));
}

function star(x, y) {
  const corners = Array.from({ length: 10 }, (_, index) => {
    const radius = index % 2 ? 4 : 9;
    const angle = (Math.PI * index) / 5 - Math.PI / 2;
    return [x + radius * Math.cos(angle), y + radius * Math.sin(angle)];
  });
  return `${path(corners)}Z`;
}
