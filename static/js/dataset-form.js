// The upload form: what was dropped is named, and a line number of an error leads to that line.

const drop = document.querySelector("[data-drop]");
const input = drop.querySelector("input");

function size(bytes) {
  if (bytes < 1024) return `${bytes} bytes`;
  return bytes < 1024 ** 2 ? `${(bytes / 1024).toFixed(1)} KB` : `${(bytes / 1024 ** 2).toFixed(1)} MB`;
}

input.addEventListener("change", () => {
  const [file] = input.files;
  if (!file) return;
  drop.querySelector("[data-drop-text]").textContent = file.name;
  drop.querySelector("[data-drop-detail]").textContent = `${size(file.size)}, click to choose another`;
  const name = document.getElementById("id_name");
  if (!name.value) name.value = file.name.replace(/\.[^.]+$/, "").slice(0, 100);
});

// The input covers the zone, so that dropping works without scripts; these only show it.
for (const type of ["dragenter", "dragover"]) drop.addEventListener(type, () => drop.classList.add("is-over"));
for (const type of ["dragleave", "drop"]) drop.addEventListener(type, () => drop.classList.remove("is-over"));

function selectLine(text, number) {
  const lines = text.value.split("\n");
  const start = lines.slice(0, number - 1).join("\n").length + (number > 1 ? 1 : 0);
  text.focus();
  text.setSelectionRange(start, start + (lines[number - 1]?.length ?? 0));
  text.scrollTop = (number - 3) * parseFloat(getComputedStyle(text).lineHeight);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-line]");
  const text = document.getElementById("id_text");
  if (!link || !text.value) return;
  document.querySelector('input[name="source"][value="paste"]').checked = true;
  selectLine(text, Number(link.dataset.line));
});
