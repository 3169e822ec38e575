// What an ioredis program does with streams; its findings go to stdout as JSON.
const Redis = require("ioredis");

async function main(port) {
  const told = {};
  const redis = new Redis(port, { maxRetriesPerRequest: 0 });
  const reader = new Redis(port, { maxRetriesPerRequest: 0 });
  await reader.ping();

  const id = await redis.xadd("node", "1-1", "sku", "a1", "qty", "2");
  told.added = [id, await redis.xrange("node", "-", "+"), await redis.xlen("node")];

  await redis.xgroup("CREATE", "node", "group", "0");
  told.read = await redis.xreadgroup("GROUP", "group", "ann", "COUNT", 10, "STREAMS", "node", ">");
  told.pending = await redis.xpending("node", "group");
  told.claimed = await redis.xautoclaim("node", "group", "bob", 0, "0", "COUNT", 10);
  told.acked = await redis.xack("node", "group", id);

  const waiting = reader.xread("BLOCK", 10000, "STREAMS", "node", "$");
  await blocked(redis);
  await redis.xadd("node", "2-1", "late", "1");
  told.waited = await waiting;

  told.multi = await redis.multi().xadd("node", "3-1", "in", "multi").set("k", "v").exec();
  told.watched = await watched(redis, reader);
  told.pipeline = await redis.pipeline(Array.from({ length: 100 }, () => ["incr", "n"])).exec();
  told.pipeline = told.pipeline.map(([error, value]) => error || value);
  told.binary = (await redis.getBuffer(await stored(redis))).toString("hex");
  told.error = await redis.get("node").catch((error) => error.message);
  told.keys = (await redis.scan(0, "COUNT", 1000))[1].sort();

  told.heard = await heard(redis, new Redis(port));

  await redis.quit();
  await reader.quit();
  console.log(JSON.stringify(told));
}

/** Return what a subscriber hears, also after the server has closed its connection. */
async function heard(redis, reader) {
  const messages = [];
  reader.on("message", (...message) => messages.push(message));
  reader.on("pmessage", (...message) => messages.push(message));
  reader.on("smessage", (...message) => messages.push(message));
  const said = async (count) => {
    while (messages.length < count) await new Promise((resolve) => setTimeout(resolve, 2));
  };
  const counts = [
    await reader.subscribe("a", "b"),
    await reader.psubscribe("c*"),
    await reader.ssubscribe("shard"),
    await redis.publish("a", "1"),
    await redis.publish("cc", "2"),
    await redis.spublish("shard", "3"),
  ];
  await said(3);
  await redis.client("KILL", "TYPE", "pubsub");
  while ((await redis.publish("b", "4")) === 0) continue;
  while ((await redis.publish("cc", "5")) === 0) continue;
  await said(5);
  counts.push(await reader.unsubscribe("a", "b"), await reader.punsubscribe("c*"));
  counts.push(await reader.sunsubscribe("shard"), await redis.publish("a", "6"));
  const pong = await reader.ping();
  await reader.quit();
  return [messages, counts, pong];
}

async function blocked(redis) {
  while (!/blocked_clients:1\r/.test(await redis.info("clients"))) continue;
}

async function watched(redis, other) {
  await redis.watch("k");
  await other.set("k", "changed");
  return redis.multi().set("k", "mine").exec();
}

async function stored(redis) {
  await redis.set("bytes", Buffer.from([0, 255, 13, 10]));
  return "bytes";
}

main(Number(process.argv[2])).catch((error) => {
  console.error(error);
  process.exit(1);
});
