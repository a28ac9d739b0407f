// What a browser says when a security key could not be used or added, in words; allauth only logs it.
import { toast } from "./toasts.js";

const WORDS = {
  NotAllowedError: "No key was used: the browser's question was cancelled or took too long. Try again.",
  InvalidStateError: "This key is registered already.",
  SecurityError: "Security keys do not work at this address: open the portal over HTTPS by its name.",
  NotSupportedError: "The browser or the key cannot do this. Try another one.",
};

document.addEventListener("allauth.error", (event) => {
  event.preventDefault();
  const { exception } = event.detail;
  const known = window.PublicKeyCredential ? WORDS[exception.name] : WORDS.SecurityError;
  for (const old of document.querySelectorAll(".toast--error")) old.remove();
  toast(known ?? `The key could not be used: ${exception.message}`, "error");
});
