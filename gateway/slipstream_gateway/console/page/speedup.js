// The effect of speculation: speculative answers against held-back ones, per class.

import { empty, frame, legend, logarithmic, logTicks, picture, xAxis } from "./chart.js";
import { $, nothing, put, row, s } from "./dom.js";
import { isTelling, progress } from "./evidence.js";
import { count, DASH, interval, times } from "./format.js";

const MEASURES = [["ttft", "TTFT", "ttft_s"], ["tpot", "TPOT", "tpot_s"], ["e2e", "E2E", "e2e_s"]];
const ROW = 38;
const FEW = 30;

export function drawSpeedUp(state, pair) {
  const found = state.speed_up.find((entry) => entry.pair === pair);
  const rows = found ? [{ ...found.overall, request_class: "all classes" }, ...found.classes] : [];
  put("speed-legend", legend(MEASURES.map(([key, name]) => [`m-${key}`, name])));
  put("speed", forest(rows.filter((entry) => isTelling(entry.e2e_s)), rows[0]?.e2e_s));
  put("speed-rows", rows.length ? rows.map(figures) : nothing(6, "No data to compare yet."));
}

const figures = (entry) =>
  row(entry.request_class, count(entry.speculative), count(entry.control), ...MEASURES.map(([, , key]) => said(entry[key])));

const said = (effect) =>
  !effect.control_n ? DASH : isTelling(effect) ? `${times(effect.speed_up)} (${interval(effect.speed_up_low, effect.speed_up_high)})` : progress(effect);

function forest(rows, overall) {
  if (!rows.length) {
    return empty(`Not enough answers yet (${progress(overall)}): the control is a small random share of the requests that would speculate.`);
  }
  const width = $("speed").clientWidth || 560;
  const area = frame($("speed"), rows.length * ROW + 44, { left: Math.min(170, width * 0.34), right: 8 });
  const ends = rows.flatMap((entry) => MEASURES.map(([, , key]) => entry[key])).filter(isTelling);
  const low = Math.max(0.2, Math.min(0.8, ...ends.map((effect) => effect.speed_up_low)) * 0.95);
  const high = Math.min(10, Math.max(1.5, ...ends.map((effect) => effect.speed_up_high)) * 1.05);
  const scale = logarithmic([low, high], [area.left, area.right]);
  const x = (value) => scale(Math.min(Math.max(value, low), high));
  const ticks = logTicks(low, high, high / low > 6 ? [1, 2, 5] : [1, 1.5, 2, 3, 5, 7]);
  const label = `Speed-up over all classes: ${said(rows[0].e2e_s)} end to end. Right of 1× speculation is faster.`;
  return picture(area, label,
    rows.map((_, at) => at % 2 === 0 && s("rect", { class: "band", x: 0, y: area.top + at * ROW, width: area.width, height: ROW })),
    xAxis(area, x, ticks, (tick) => `${tick}×`, "control ÷ speculative: right is faster"),
    s("line", { class: "ref", x1: x(1), x2: x(1), y1: area.top, y2: area.bottom }),
    rows.map((entry, at) => line(entry, at, area, x)));
}

const line = (entry, at, area, x) => [
  s("text", { class: at ? "" : "strong", x: 6, y: area.top + at * ROW + ROW / 2 + 4 }, entry.request_class),
  MEASURES.map(([key, , field], index) => mark(entry[field], area.top + at * ROW + 8 + index * 11, key, x)),
];

const mark = (effect, y, key, x) =>
  !isTelling(effect) ? null : s("g", { class: `m-${key}` },
    s("line", { class: "whisker", x1: x(effect.speed_up_low), x2: x(effect.speed_up_high), y1: y, y2: y }),
    s("circle", { class: effect.control_n < FEW ? "dot few" : "dot", cx: x(effect.speed_up), cy: y, r: 4 }));
