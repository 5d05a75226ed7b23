// The actions of an application. HEATSINK_SERVER=… node worker.mjs ./handlers.mjs runs their items.

import { Fail } from "./worker.mjs";

export default {
  double: {
    max_attempts: 3,
    timeout_s: 30,
    async run(item, context) {
      if (typeof item.n !== "number") throw new Fail("n must be a number");
      return { doubled: item.n * 2, attempt: context.attempt };
    },
  },
};
