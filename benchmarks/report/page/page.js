"use strict";

// Tables: a click or Enter on a heading sorts, once up, once down; cells without a value stay last.
const everywhere = document.getElementById("everywhere");

function sort(table, column, ascending) {
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => [row, row.cells[column].dataset.order]);
  keyed.sort(([, a], [, b]) => {
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
    const [x, y] = [Number(a), Number(b)];
    const order = a !== "" && b !== "" && !Number.isNaN(x) && !Number.isNaN(y) ? x - y : a.localeCompare(b, "en");
    return ascending ? order : -order;
  });
  body.append(...keyed.map(([row]) => row));
  [...table.tHead.rows[0].cells].forEach((cell, n) => {
    cell.setAttribute("aria-sort", n !== column ? "none" : ascending ? "ascending" : "descending");
  });
}

// Filters: every word has to stand in the row; the field above looks at arms alone, in tables and in figures.
const has = (text, words) => words.every((word) => text.includes(word));
const words = (field) => field.value.toLowerCase().split(/\s+/).filter(Boolean);

function filter(holder) {
  const own = holder.querySelector("[data-filter]");
  const rows = [...holder.querySelectorAll("tbody tr")];
  const heads = [...holder.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
  const arm = heads.indexOf("arm");
  const wanted = own ? words(own) : [];
  const arms = arm < 0 ? [] : words(everywhere);
  let shown = 0;
  for (const row of rows) {
    const fits = has(row.textContent.toLowerCase(), wanted) && has(row.cells[Math.max(arm, 0)].textContent.toLowerCase(), arms);
    row.hidden = !fits;
    shown += fits;
  }
  const told = holder.querySelector("[data-shown]");
  if (told) told.textContent = shown === rows.length ? "" : `${shown} of ${rows.length} rows`;
}

const tables = [...document.querySelectorAll("[data-table]")];
for (const holder of tables) {
  const table = holder.querySelector("table");
  table.tHead.addEventListener("click", (event) => {
    const cell = event.target.closest("th");
    if (cell) sort(table, cell.cellIndex, cell.getAttribute("aria-sort") !== "ascending");
  });
  holder.querySelector("[data-filter]")?.addEventListener("input", () => filter(holder));
}
everywhere.addEventListener("input", () => {
  tables.forEach(filter);
  for (const drawn of document.querySelectorAll("[data-arm]")) {
    drawn.classList.toggle("dim", !has(drawn.dataset.arm.toLowerCase(), words(everywhere)));
  }
});

// Figures: a pointer or the keyboard shows what a point tells; Tab reaches a figure, arrows go through its points.
const tip = document.getElementById("tip");
let told = null;

function place() {
  if (!told) return;
  const at = told.getBoundingClientRect();
  const left = Math.min(Math.max(8, at.left + at.width / 2 - tip.offsetWidth / 2), innerWidth - tip.offsetWidth - 8);
  const above = at.top - tip.offsetHeight - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 0 ? above : at.bottom + 8}px`;
}

function tell(point) {
  told = point;
  tip.hidden = point === null;
  if (point) tip.textContent = point.getAttribute("aria-label");
  place();
}

for (const figure of document.querySelectorAll("figure")) {
  const points = [...figure.querySelectorAll(".point")];
  points.forEach((point, n) => {
    point.addEventListener("pointerenter", () => tell(point));
    point.addEventListener("pointerleave", () => tell(null));
    point.addEventListener("focus", () => tell(point));
    point.addEventListener("blur", () => tell(null));
    point.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") tell(null);
      if (!step) return;
      event.preventDefault();
      const next = points[(n + step + points.length) % points.length];
      point.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
  });
}
addEventListener("scroll", place, { passive: true });
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
