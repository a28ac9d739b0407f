// <time datetime="..."> in the viewer's zone: relative text; the full time and the same in UTC as its title.

const UNITS = [
  ["year", 31536000],
  ["month", 2592000],
  ["day", 86400],
  ["hour", 3600],
  ["minute", 60],
];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const absolute = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });

export function relativeText(date, now = new Date()) {
  const seconds = (date - now) / 1000;
  const fitting = UNITS.find(([, size]) => Math.abs(seconds) >= size);
  return fitting ? relative.format(Math.round(seconds / fitting[1]), fitting[0]) : "just now";
}

export function updateTimes(root = document) {
  for (const node of root.querySelectorAll("time[datetime]")) {
    const date = new Date(node.dateTime);
    const text = { clock: () => clock.format(date), full: () => absolute.format(date) }[node.dataset.format]?.() ?? relativeText(date);
    if (node.textContent !== text) node.textContent = text;
    node.title = `${absolute.format(date)} (${ZONE})\n${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
  }
}

export function initTimes() {
  updateTimes();
  setInterval(updateTimes, 20_000);
  document.addEventListener("htmx:after:swap", () => updateTimes());
}
