// SPDX-License-Identifier: GPL-2.0-or-later
// Loads the content again every 20 seconds, and at most once in two seconds when something was announced. While that fails a line
// above the content says so: an old page must not look like a new one. `/` leads to the search. The page is whole without this script.
"use strict";
document.addEventListener("keydown", (event) => {
  const isText = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key !== "/" || isText || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  document.querySelector("header input").focus();
});
const main = document.querySelector("main[data-live]");
if (main) {
  let due = false, asked = 0, answered = 0;
  const icon = document.querySelector("link[rel=icon]");
  const status = document.createElement("div");
  status.setAttribute("role", "status");
  main.before(status);

  // The line stays as it is while its text does not change: a screen reader reads each change.
  const say = (text, kind) => {
    if (status.textContent === text) return;
    const line = document.createElement("p");
    line.className = `notice ${kind}`;
    line.textContent = text;
    status.replaceChildren(...(text ? [line] : []));
  };
  const age = () => `This page shows what was known at ${document.querySelector("footer time").textContent} UTC`;

  // What the reader is at is not taken away.
  const isInUse = () =>
    main.contains(document.activeElement) || String(getSelection()) || main.querySelector("details[open]");

  const renew = async () => {
    due = false;
    if (isInUse()) return say(`${age()}; it is not renewed while a part of it is in use.`, "warning");
    const number = ++asked;
    const answer = await fetch(location.href, { signal: AbortSignal.timeout(15000) }).catch(() => null);
    const text = answer && answer.ok ? await answer.text().catch(() => "") : "";
    if (number < answered) return;
    answered = number;
    const page = new DOMParser().parseFromString(text, "text/html");
    // A proxy may answer with a page of its own.
    const content = page.querySelector("main[data-live]");
    if (!content) {
      document.title = `no answer: ${document.title.replace(/^(no answer|warning|critical): /, "")}`;
      icon.href = "/static/icon-critical.svg";
      const failure = answer ? `answers with status ${answer.status} and not with this page` : "does not answer";
      return say(`The dashboard ${failure}. ${age()}.`, "critical");
    }
    document.title = page.title;
    icon.href = page.querySelector("link[rel=icon]").getAttribute("href");
    if (isInUse()) return;
    main.replaceChildren(...content.childNodes);
    document.querySelector("footer").replaceChildren(...page.querySelector("footer").childNodes);
    say("", "");
  };

  let feed = null;
  const listen = () => {
    feed = new EventSource("/pushes/live");
    feed.onmessage = () => {
      if (!due) setTimeout(renew, 2000);
      due = true;
    };
    feed.onerror = renew;
    feed.onopen = () => {
      if (status.textContent) renew();
    };
  };
  listen();
  setInterval(() => {
    if (feed.readyState === EventSource.CLOSED) listen();
    renew();
  }, 20000);
}
