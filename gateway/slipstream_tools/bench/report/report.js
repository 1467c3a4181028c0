"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const MARKS = ".role-mark [aria-label]";
  const tip = document.getElementById("tip");
  let current = null;

  // Tooltips: data is only ever set as text.
  function show(mark) {
    current?.classList.remove("current");
    current = mark;
    tip.hidden = !mark;
    if (!mark) return;
    mark.classList.add("current");
    tip.textContent = mark.getAttribute("aria-label");
    place();
  }
  function place() {
    if (!current) return;
    const box = current.getBoundingClientRect();
    const left = Math.min(box.left + box.width / 2 - tip.offsetWidth / 2, innerWidth - tip.offsetWidth - 8);
    const above = box.top - tip.offsetHeight - 10;
    tip.style.left = `${Math.max(left, 8)}px`;
    tip.style.top = `${above > 8 ? above : box.bottom + 10}px`;
  }
  document.addEventListener("pointerover", (event) => show(event.target.closest(MARKS)));
  document.addEventListener("focusout", () => show(null));
  // It stays with its mark: focus scrolls a plot into view, and must not take away what it shows.
  document.addEventListener("scroll", place, { passive: true });

  // A plot is one stop of the Tab key; arrows go through its marks, Escape leaves them.
  const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: 1, End: -1 };
  document.addEventListener("keydown", (event) => {
    const plot = event.target.closest(".plot");
    const by = STEPS[event.key];
    if (event.key === "Escape") show(null);
    if (!plot || !by) return;
    event.preventDefault();
    const marks = all(MARKS, plot).filter((mark) => !mark.closest(".off, .dim"));
    const at = event.key.startsWith("Arrow") ? marks.indexOf(current) : -1;
    const next = at < 0 && by < 0 ? marks.length - 1 : at + by;
    if (marks.length) show(marks[(next + marks.length) % marks.length]);
  });

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
  function open(chosen) {
    for (const tab of tabs) {
      tab.setAttribute("aria-pressed", String(tab === chosen));
      document.getElementById(tab.dataset.view).hidden = tab !== chosen;
    }
  }
  for (const tab of tabs) tab.addEventListener("click", () => open(tab));
  open(tabs[0]);

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
