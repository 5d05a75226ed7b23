// Act 4: each post as a pair of bars: the number of homes written for it.

import { chart, wide } from "/static/elements.js";
import { number } from "/static/words.js";
import { lines, pairs } from "/demo/static/charts.js";
import { picture, side, summary, tall } from "/demo/static/parts.js";

const sum = (now, field) => (now?.posts ?? []).reduce((total, post) => total + post[field], 0);

export function make() {
  let now = null;
  const last = (field) => number(now?.posts.at(-1)?.[field] ?? 0);
  const top = summary({
    followers: () => number(now?.followers ?? 0),
    "Grace is": () => (now?.mode === "pull" ? "pulled" : "pushed"),
    "home writes, threshold": () => [number(sum(now, "writes")), `${last("writes")} for the last post`],
    "home writes, always pushed": () => [number(sum(now, "always_writes")), `${last("always_writes")} for the last post`],
  });
  const bars = tall("Homes written for each post, always pushed and with the threshold");
  const followers = chart("Followers over time, and the threshold");
  const writes = chart("Home writes so far, always pushed and with the threshold");
  const element = picture(
    top.element,
    wide("Homes written for each post", bars),
    side("Followers", "the dashed line is the threshold", followers),
    side("Home writes so far", "all posts together", writes),
  );
  return {
    element,
    draw(run) {
      now = run.snapshots.at(-1);
      top.update(now?.says ?? "");
      pairs(bars, now?.posts ?? [], [
        { name: "always pushed", fill: "refused", of: (post) => post.always_writes },
        { name: "with the threshold", fill: "accent", of: (post) => post.writes },
      ]);
      lines(followers, run, [{ name: "followers", style: "main", of: (one) => one.followers }],
        { top: 10, limit: now?.threshold, text: `pulled from ${number(now?.threshold)} on` });
      lines(writes, run, [
        { name: "always pushed", style: "plain", of: (one) => sum(one, "always_writes") },
        { name: "with the threshold", style: "line", of: (one) => sum(one, "writes") },
      ], { top: 10 });
    },
  };
}
