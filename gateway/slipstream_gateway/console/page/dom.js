// DOM helpers. External data becomes text or an attribute's value, never markup.

const SVG = "http://www.w3.org/2000/svg";

const fill = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
};

export const h = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
export const s = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
export const $ = (id) => document.getElementById(id);

/** Puts `children` into the element with that id, in the place of what is there. */
export const put = (id, ...children) => $(id).replaceChildren(...children.flat(3));

/** Sets a text only if it differs: a live region must not announce the same text twice. */
export const say = (id, text) => {
  const element = $(id);
  if (element.textContent !== text) element.textContent = text;
};

export const row = (head, ...cells) =>
  h("tr", null, h("th", { scope: "row" }, head), cells.map((cell) => (cell instanceof Node ? cell : h("td", { class: "n" }, cell))));
export const text = (...children) => h("td", null, ...children);
export const nothing = (columns, what) => h("tr", null, h("td", { colspan: columns, class: "note" }, what));
