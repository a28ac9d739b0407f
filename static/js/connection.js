// The dot that says in words whether the page is live: where the page has a place of its own for it, else in the frame.
// Hidden on pages that have nothing live.

const WORDS = {
  connecting: "Connecting",
  live: "Live",
  reconnecting: "Reconnecting",
  waiting: "Too many pages are open: close some",
  offline: "Offline",
  closed: "Not connected: reload the page",
};
let countdown;

function secondsUntil(moment) {
  return Math.max(1, Math.ceil((moment - Date.now()) / 1000));
}

function show({ state, retryAt }) {
  clearInterval(countdown);
  const own = document.querySelectorAll("main [data-live-state]");
  const dots = own.length ? own : document.querySelectorAll("[data-live-state]");
  for (const dot of dots) {
    dot.hidden = false;
    dot.dataset.liveState = state;
    const words = dot.querySelector("[data-words]");
    if (words.textContent !== WORDS[state]) words.textContent = WORDS[state];
  }
  const waits = retryAt && (state === "reconnecting" || state === "waiting" || state === "offline");
  const tell = () => {
    // Beside the words and not read aloud: a screen reader is told of the state, not of every second.
    const text = waits ? ` · trying again in ${secondsUntil(retryAt)} s` : "";
    for (const dot of dots) dot.querySelector("[data-wait]").textContent = text;
  };
  tell();
  if (waits) countdown = setInterval(tell, 500);
}

export function initConnection() {
  document.addEventListener("live:state", ({ detail }) => show(detail));
}
