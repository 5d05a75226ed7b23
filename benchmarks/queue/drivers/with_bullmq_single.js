// BullMQ if every item is added by a call of its own, by 64 callers.
process.env.SINGLE = "1";
require("./with_bullmq.js");
