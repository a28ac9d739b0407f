// Choosing jobs to compare in the list: what is chosen stays so through live updates, pages and filters.

const STORE = "compare";
const MOST = 6;
const form = document.getElementById("compare-form");
const bar = document.getElementById("compare-bar");
const chosen = new Map(JSON.parse(sessionStorage.getItem(STORE) ?? "[]")); // id -> name

function show() {
  if (!bar) return; // there are no jobs
  for (const box of form.querySelectorAll("[name=job]")) {
    box.checked = chosen.has(box.value);
    box.disabled = !box.checked && chosen.size >= MOST;
  }
  const text = { 0: "Tick two to six jobs to compare them.", 1: "1 job chosen; choose another to compare." }[chosen.size] ?? `${chosen.size} jobs chosen`;
  bar.querySelector("[data-chosen]").textContent = chosen.size >= MOST ? `${text}, the most there can be` : text;
  const link = bar.querySelector("[data-compare]");
  link.hidden = chosen.size < 2;
  link.href = `${form.action}?${new URLSearchParams([...chosen.keys()].map((id) => ["job", id]))}`;
  bar.querySelector("[data-clear]").hidden = chosen.size === 0;
  sessionStorage.setItem(STORE, JSON.stringify([...chosen]));
}

form.addEventListener("change", ({ target }) => {
  if (target.name !== "job") return;
  if (target.checked) chosen.set(target.value, target.dataset.name);
  else chosen.delete(target.value);
  show();
});
bar?.querySelector("[data-clear]").addEventListener("click", () => {
  chosen.clear();
  show();
});
document.addEventListener("htmx:after:swap", show);
show();
