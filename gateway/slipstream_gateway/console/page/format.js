// Formatting of numbers. A missing one is a dash, never 0.

export const DASH = "–";

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export const seconds = (value) => {
  if (!known(value)) return DASH;
  const size = Math.abs(value);
  if (size < 0.0995) return `${(value * 1e3).toFixed(size < 0.00995 ? 2 : 1)} ms`;
  if (size < 0.9995) return `${(value * 1e3).toFixed(0)} ms`;
  return `${value.toFixed(size < 9.995 ? 2 : 1)} s`;
};
export const duration = (value) => {
  if (!known(value)) return DASH;
  const size = Math.abs(value);
  if (size < 100) return seconds(value);
  return size < 6000 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`;
};
export const times = (value) => (known(value) ? `${value.toFixed(value < 9.95 ? 2 : 1)}×` : DASH);
export const percent = (value, digits = 0) => (known(value) ? `${(value * 100).toFixed(digits)} %` : DASH);
export const count = (value) => (known(value) ? Math.round(value).toLocaleString("en") : DASH);
export const usd = (value) => (known(value) ? value.toLocaleString("en", { maximumFractionDigits: 4 }) : DASH);
export const rate = (value) => (known(value) ? value.toFixed(value < 9.95 ? 1 : 0) : DASH);
export const words = (name) => String(name).replaceAll("_", " ");
export const interval = (low, high) => `${times(low)} to ${times(high)}`;
export const clock = (iso) => {
  const date = new Date(iso);
  return Number.isNaN(date.getTime()) ? String(iso) : date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
};
export const sum = (list) => list.reduce((total, value) => total + value, 0);
export const tail = (list, size) => list.slice(Math.max(0, list.length - size));
