// The parts of the charts: scales, axes, a frame as wide as its container.

import { h, s } from "./dom.js";

export const linear = (domain, range) => (value) =>
  range[0] + ((value - domain[0]) / (domain[1] - domain[0] || 1)) * (range[1] - range[0]);
export const logarithmic = (domain, range) => {
  const scale = linear(domain.map(Math.log), range);
  return (value) => scale(Math.log(Math.max(value, 1e-9)));
};

/** About `most` round numbers from 0 up to `high`. */
export const roundTicks = (high, most = 4) => {
  const raw = (high || 1) / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
  return Array.from({ length: Math.floor((high || 1) / step + 1e-9) + 1 }, (_, index) => index * step);
};

/** Of 1, 2, 5, 10, … those between `low` and `high`. */
export const logTicks = (low, high, factors = [1, 2, 5]) => {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    found.push(...factors.map((factor) => factor * 10 ** power).filter((tick) => tick >= low * 0.999 && tick <= high * 1.001));
  }
  return found;
};

export const frame = (host, height, { left = 48, right = 14, top = 10, bottom = 34 } = {}) => {
  const width = Math.max(260, host.clientWidth || 560);
  return { width, height, left, right: width - right, top, bottom: height - bottom };
};

export const xAxis = (area, scale, ticks, form, label) => [
  ticks.map((tick) => [
    s("line", { class: "grid", x1: scale(tick), x2: scale(tick), y1: area.top, y2: area.bottom }),
    s("text", { class: "tick", x: scale(tick), y: area.bottom + 15, "text-anchor": "middle" }, form(tick)),
  ]),
  label && s("text", { class: "axis", x: (area.left + area.right) / 2, y: area.bottom + 30, "text-anchor": "middle" }, label),
];

export const yAxis = (area, scale, ticks, form) =>
  ticks.map((tick) => [
    s("line", { class: "grid", x1: area.left, x2: area.right, y1: scale(tick), y2: scale(tick) }),
    s("text", { class: "tick", x: area.left - 7, y: scale(tick) + 4, "text-anchor": "end" }, form(tick)),
  ]);

/** The window's buckets from left to right, from the first one with a value on, but for the last five minutes at least. */
export const timeScale = (traffic, values, area, shift = 0) => {
  const used = values.findIndex((value) => value > 0);
  const from = Math.max(0, Math.min(used, values.length - (5 * 60) / traffic.bucket_s));
  const x = linear([from + shift, traffic.buckets - 1], [area.left, area.right]);
  const at = (minute) => x(traffic.buckets - 1 - (minute * 60) / traffic.bucket_s);
  const axis = [14, 12, 10, 8, 6, 4, 2, 0].filter((minute) => at(minute) >= area.left).map((minute) =>
    s("text", { class: "tick", x: at(minute), y: area.bottom + 15, "text-anchor": minute ? "middle" : "end" }, minute ? `−${minute} min` : "now"));
  return { x, from, axis };
};

export const path = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

/** A picture with one sentence for who does not see it; its figures stand in the table beside it. */
export const picture = (area, label, ...parts) =>
  s("svg", { viewBox: `0 0 ${area.width} ${area.height}`, role: "img", "aria-label": label }, ...parts);

export const empty = (what) => h("p", { class: "empty" }, what);
export const legend = (entries) => entries.map(([style, name]) => h("span", { class: style }, h("i"), name));
