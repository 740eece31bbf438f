// Follows the server: fetches the page again when the study has grown, and swaps what differs.
{
  const status = document.getElementById("live");
  const main = document.getElementById("main");
  let shown = null;
  let served = new Map();

  const say = (text, lost) => {
    status.textContent = text;
    status.classList.toggle("lost", lost);
  };

  // What a reader has unfolded stays so.
  const unfold = (part) => {
    for (const fresh of part.querySelectorAll("details[id]")) {
      const old = document.getElementById(fresh.id);
      if (old) fresh.open = old.open;
    }
  };

  const stops = "a, summary, select, [tabindex]";
  const replace = (old, part) => {
    const at = [...old.querySelectorAll(stops)].indexOf(document.activeElement);
    unfold(part);
    old.replaceWith(part);
    if (at >= 0) part.querySelectorAll(stops)[at]?.focus({ preventScroll: true });
  };

  const swap = async () => {
    const answer = await fetch("/", { cache: "no-store" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.title = next.title;
    document.querySelector("header").replaceWith(next.querySelector("header"));
    const parts = [...next.getElementById("main").children];
    const texts = new Map(parts.map((part) => [part.id, part.outerHTML]));
    const same = parts.map(({ id }) => id).join() === [...main.children].map(({ id }) => id).join();
    if (!same) {
      parts.forEach(unfold);
      main.replaceChildren(...parts);
    } else {
      for (const part of parts)
        if (texts.get(part.id) !== served.get(part.id)) replace(document.getElementById(part.id), part);
    }
    served = texts;
    document.dispatchEvent(new Event("swapped"));
  };

  const events = new EventSource("/events");
  let turn = Promise.resolve();
  events.addEventListener("state", ({ data }) => {
    const { version, error } = JSON.parse(data);
    turn = turn.then(async () => {
      if (version !== shown) await swap();
      shown = version;
      const now = new Date().toLocaleTimeString();
      say(error ? `${error} The page shows what was there before.` : `Live: as of ${now}.`, Boolean(error));
    }).catch((why) => say(`The page could not be fetched (${why.message}); trying again.`, true));
  });
  events.addEventListener("error", () => {
    const over = events.readyState === EventSource.CLOSED;
    say(`The connection is lost; ${over ? "open the page again" : "trying again"}.`, true);
  });
}
