// Home: its part of the page is fetched again when a job has news, or when one comes back to the tab, since datasets and
// rewards made elsewhere tick the checklist too.
import "./job-lists.js";

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) document.body.dispatchEvent(new CustomEvent("live:jobs"));
});
