// Percentiles per measure and arm.

import { empty, frame, logarithmic, logTicks, picture, xAxis } from "./chart.js";
import { $, nothing, put, row, s, text } from "./dom.js";
import { count, seconds } from "./format.js";
import { ARMS } from "./requests.js";

const MEASURES = [["ttft", "TTFT"], ["tpot", "TPOT"], ["e2e", "E2E"]];
const ROW = 22;

export function drawLatency(state, pair) {
  const rows = MEASURES.flatMap(([measure, name]) =>
    ARMS.map((arm) => state.latency.find((found) => found.pair === pair && found.arm === arm && found.measure === measure))
      .filter(Boolean)
      .map((found) => ({ ...found, name })));
  put("times", rows.length ? chart(rows) : empty("No answers in the last 15 minutes."));
  put("times-rows", rows.length
    ? rows.map((found) => row(found.name, text(found.arm), count(found.count), ...["p50_s", "p90_s", "p95_s", "p99_s"].map((key) => seconds(found[key]))))
    : nothing(7, "No answers in the last 15 minutes."));
}

function chart(rows) {
  const area = frame($("times"), rows.length * ROW + 66, { left: 112, right: 16 });
  const low = Math.min(...rows.map((found) => found.p50_s)) * 0.8;
  const high = Math.max(...rows.map((found) => found.p99_s)) * 1.15;
  const x = logarithmic([low, high], [area.left, area.right]);
  const names = rows.map((found, at) => (at && rows[at - 1].name === found.name ? "" : found.name));
  const label = rows.map((found) => `${found.name} ${found.arm}: p50 ${seconds(found.p50_s)}, p99 ${seconds(found.p99_s)}`).join("; ");
  let gap = 0;
  return picture(area, label,
    xAxis({ ...area, bottom: area.height - 34 }, x, logTicks(low, high, high / low > 300 ? [1] : [1, 3]), (tick) => seconds(tick).replace(/\.0+ /, " "), "seconds, logarithmic"),
    rows.map((found, at) => {
      gap += names[at] && at ? 8 : 0;
      const y = area.top + at * ROW + gap + 10;
      return s("g", { class: `a-${found.arm}` },
        names[at] && s("text", { class: "strong", x: 0, y: y + 4 }, names[at]),
        s("text", { class: "tick", x: area.left - 8, y: y + 4, "text-anchor": "end" }, found.arm),
        s("line", { class: "whisker", x1: x(found.p50_s), x2: x(found.p99_s), y1: y, y2: y }),
        s("circle", { class: "dot", cx: x(found.p50_s), cy: y, r: 4.5 }),
        s("line", { class: "whisker", x1: x(found.p95_s), x2: x(found.p95_s), y1: y - 5, y2: y + 5 }));
    }));
}
