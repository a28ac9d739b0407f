// Keys on the rollout pages: j and k go to the next and the previous, in a list from item to item, else from page to page.

const items = [...document.querySelectorAll("[data-key-item]")];
const busy = "input, textarea, select, [contenteditable], dialog[open]";

function current() {
  return items.findIndex((item) => item.contains(document.activeElement));
}

function move(by) {
  const index = Math.min(items.length - 1, Math.max(0, current() + by));
  items[index].querySelector("a").focus();
  items[index].scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest(busy)) return;
  if (event.key !== "j" && event.key !== "k") return;
  if (items.length) return move(event.key === "j" ? 1 : -1);
  const link = document.querySelector(`[data-key="${event.key}"]`);
  if (link) location.assign(link.href);
});

document.querySelector("[data-marked]")?.scrollIntoView({ block: "nearest", inline: "center" });
