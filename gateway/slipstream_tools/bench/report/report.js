"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const MARKS = ".role-mark [aria-label]";
  const tip = document.getElementById("tip");
  let current = null;

  // Tooltips: data is only ever set as text.
  function show(mark) {
    hide();
    current = mark;
    mark.classList.add("current");
    tip.textContent = mark.getAttribute("aria-label");
    tip.hidden = false;
    place();
  }
  function place() {
    if (!current) return;
    const box = current.getBoundingClientRect();
    const left = Math.min(Math.max(box.left + box.width / 2 - tip.offsetWidth / 2, 8), innerWidth - tip.offsetWidth - 8);
    const above = box.top - tip.offsetHeight - 10;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 8 ? above : box.bottom + 10}px`;
  }
  function hide() {
    if (current) current.classList.remove("current");
    current = null;
    tip.hidden = true;
  }
  document.addEventListener("pointerover", (event) => {
    const mark = event.target.closest(MARKS);
    if (mark) show(mark);
    else if (current) hide();
  });
  // It stays with its mark: focus scrolls a plot into view, and must not take away what it shows.
  document.addEventListener("scroll", place, { passive: true });

  // A plot is one stop of the Tab key; arrows go through its marks, Escape leaves them.
  function step(plot, by, edge) {
    const marks = all(MARKS, plot).filter((mark) => !mark.closest(".off, .dim"));
    if (!marks.length) return;
    const at = marks.indexOf(current);
    const next = edge ? (by > 0 ? 0 : marks.length - 1) : at < 0 ? (by > 0 ? 0 : marks.length - 1) : at + by;
    show(marks[(next + marks.length) % marks.length]);
  }
  const KEYS = {
    ArrowRight: [1, false], ArrowDown: [1, false], ArrowLeft: [-1, false], ArrowUp: [-1, false],
    Home: [1, true], End: [-1, true],
  };
  document.addEventListener("keydown", (event) => {
    const plot = event.target.closest(".plot");
    if (event.key === "Escape") hide();
    if (!plot || !KEYS[event.key]) return;
    event.preventDefault();
    step(plot, ...KEYS[event.key]);
  });
  document.addEventListener("focusout", hide);

  // Modes, on and off, everywhere: a mark belongs to the mode whose colour it has.
  for (const button of all("[data-toggle]")) {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      const colour = `"var(--mode-${button.dataset.toggle})"`;
      for (const part of all(`.plot [fill=${colour}], .plot [stroke=${colour}]`)) part.classList.toggle("off", !on);
    });
  }

  // One comparison at a time.
  const tabs = all("[data-view]");
  function open(key) {
    for (const tab of tabs) {
      const chosen = tab.dataset.view === key;
      tab.setAttribute("aria-pressed", String(chosen));
      document.getElementById(tab.dataset.view).hidden = !chosen;
    }
  }
  for (const tab of tabs) tab.addEventListener("click", () => open(tab.dataset.view));
  if (tabs.length) open(tabs[0].dataset.view);

  // One class at a time: its latencies are shown, the requests of others step back. The first option is all of them.
  const select = document.getElementById("class");
  const names = [...select.options].map((option) => option.text);
  function pick() {
    for (const panel of all("[data-panel]")) panel.hidden = panel.dataset.panel !== select.value;
    for (const mark of all(MARKS)) {
      const name = mark.getAttribute("aria-label").split(": ", 1)[0];
      mark.classList.toggle("dim", select.selectedIndex > 0 && names.includes(name) && name !== select.value);
    }
  }
  select.addEventListener("change", pick);
  pick();
})();
