// Locks, rate limits, sessions, caches, channels and brokers of npm, on ioredis and node-redis.

const assert = require("node:assert");
const { after, before, beforeEach, test } = require("node:test");
const { once } = require("node:events");
const http = require("node:http");
const Redis = require("ioredis");
const redis = require("redis");

const PORT = Number(process.env.REDIS_PORT);
const URL = `redis://127.0.0.1:${PORT}`;
const closing = [];
const ioredis = () => {
  const c = new Redis({ port: PORT, host: "127.0.0.1" });
  closing.push(() => c.disconnect());
  return c;
};
const nodeRedis = async (o = {}) => {
  const c = redis.createClient({ url: URL, ...o });
  c.on("error", () => {});
  await c.connect();
  closing.push(() => c.destroy());
  return c;
};
const pause = (ms) => new Promise((r) => setTimeout(r, ms));
async function until(f) {
  for (let i = 0; i < 500; i++) {
    if (await f()) return;
    await pause(20);
  }
  assert.fail("never");
}
let io;
before(() => {
  io = ioredis();
});
beforeEach(() => io.flushall());
after(async () => {
  for (const c of closing) await c();
  setTimeout(() => process.exit(), 500).unref();
});

test("redlock: locks exclude, extend, release, expire", async () => {
  const Redlock = require("redlock-5").default;
  const lock = new Redlock([io], { retryCount: 0 });
  const a = await lock.acquire(["r1", "r2"], 2000);
  await assert.rejects(lock.acquire(["r2"], 1000));
  const b = await a.extend(3000);
  assert((await io.pttl("r1")) > 2000);
  await b.release();
  const c = await lock.acquire(["r2"], 50);
  await pause(100);
  const d = await lock.acquire(["r2"], 1000);
  await d.release();
  const done = await lock.using(["r3"], 500, { automaticExtensionThreshold: 200 }, async (signal) => {
    await pause(900);
    assert(!signal.aborted);
    return 7;
  });
  assert.strictEqual(done, 7);
});

test("rate-limiter-flexible: consume, block, penalty, reward, delete, insurance", async () => {
  const { RateLimiterRedis, BurstyRateLimiter, RLWrapperBlackAndWhite } = require("rate-limiter-flexible");
  for (const [client, useRedisPackage] of [
    [io, false],
    [await nodeRedis(), true],
  ]) {
    const l = new RateLimiterRedis({
      storeClient: client,
      useRedisPackage,
      points: 3,
      duration: 2,
      blockDuration: 5,
      keyPrefix: useRedisPackage ? "n" : "i",
    });
    await l.consume("u");
    await l.consume("u", 2);
    const e = await l.consume("u").catch((x) => x);
    assert.strictEqual(e.remainingPoints, 0);
    assert(e.msBeforeNext > 2000, String(e.msBeforeNext));
    assert.strictEqual((await l.get("u")).consumedPoints, 4);
    await l.penalty("v", 2);
    await l.reward("v");
    assert.strictEqual((await l.get("v")).consumedPoints, 1);
    await l.block("w", 10);
    assert((await l.get("w")).msBeforeNext > 9000);
    await l.set("x", 2, 10);
    assert.strictEqual((await l.get("x")).remainingPoints, 1);
    assert.strictEqual(await l.delete("u"), true);
    assert.strictEqual(await l.get("u"), null);
  }
});

test("express-rate-limit and connect-redis over HTTP", async () => {
  const express = require("express"),
    session = require("express-session");
  const { RedisStore } = require("connect-redis");
  const { RedisStore: Limit } = require("rate-limit-redis");
  const { rateLimit } = require("express-rate-limit");
  const client = await nodeRedis();
  const store = new RedisStore({ client, ttl: 100 });
  const app = express();
  app.use(
    rateLimit({
      windowMs: 60000,
      limit: 3,
      standardHeaders: "draft-7",
      legacyHeaders: true,
      store: new Limit({ sendCommand: (...a) => client.sendCommand(a) }),
    }),
  );
  app.use(session({ store, secret: "s", resave: false, saveUninitialized: false }));
  app.get("/", (q, r) => {
    q.session.n = (q.session.n || 0) + 1;
    r.send(String(q.session.n));
  });
  const server = app.listen(0);
  await once(server, "listening");
  closing.push(() => server.close());
  const at = `http://127.0.0.1:${server.address().port}/`;
  const one = await fetch(at);
  const cookie = one.headers.get("set-cookie").split(";")[0];
  assert.strictEqual(await one.text(), "1");
  const two = await fetch(at, { headers: { cookie } });
  assert.strictEqual(await two.text(), "2");
  await fetch(at);
  const four = await fetch(at);
  assert.strictEqual(four.status, 429);
  assert.strictEqual(four.headers.get("x-ratelimit-remaining"), "0");
  const call = (n, ...a) => new Promise((y, n2) => store[n](...a, (e, v) => (e ? n2(e) : y(v))));
  assert((await call("length")) >= 1);
  const ids = await call("ids");
  assert((await client.ttl("sess:" + ids[0])) > 90);
  assert.strictEqual((await call("all")).length, ids.length);
  await call("touch", ids[0], { cookie: { originalMaxAge: 50000, expires: new Date(Date.now() + 50000) } });
  assert((await client.ttl("sess:" + ids[0])) <= 50);
  await call("destroy", ids[0]);
  await call("clear");
  assert.strictEqual(await call("length"), 0);
});

for (const sharded of [false, true])
  for (const kind of ["ioredis", "redis"])
    test(`@socket.io/redis-adapter ${sharded ? "sharded" : "plain"} on ${kind}`, async () => {
      const { Server } = require("socket.io"),
        { io: connect } = require("socket.io-client");
      const { createAdapter, createShardedAdapter } = require("@socket.io/redis-adapter");
      const servers = [],
        ends = [],
        clients = [];
      for (let i = 0; i < 2; i++) {
        const [pub, sub] =
          kind === "redis"
            ? [await nodeRedis({ RESP: 2 }), await nodeRedis({ RESP: 2 })]
            : [ioredis(), ioredis()];
        const h = http.createServer();
        const s = new Server(h, {
          adapter: sharded
            ? createShardedAdapter(pub, sub, { subscriptionMode: i ? "static" : "static" })
            : createAdapter(pub, sub),
        });
        h.listen(0);
        await once(h, "listening");
        servers.push(s);
        ends.push(() => s.close());
        s.on("connection", (k) => k.join("room" + i));
        const c = connect(`http://127.0.0.1:${h.address().port}`, { transports: ["websocket"] });
        await once(c, "connect");
        clients.push(c);
        ends.push(() => c.close());
      }
      await pause(200);
      const got = clients.map((c) => once(c, "hello"));
      servers[0].emit("hello", "x", Buffer.from([1, 2]));
      assert.deepStrictEqual((await got[1])[0], "x");
      await got[0];
      const r = once(clients[1], "r");
      servers[0].to("room1").emit("r", 5);
      assert.deepStrictEqual(await r, [5]);
      assert.strictEqual((await servers[0].fetchSockets()).length, 2);
      servers[1].on("ev", (x, cb) => cb(x + 1));
      servers[0].on("ev", (x, cb) => cb(x));
      assert.deepStrictEqual(
        await new Promise((y, n) => servers[0].serverSideEmit("ev", 1, (e, v) => (e ? n(e) : y(v)))),
        [2],
      );
      clients.forEach((c) => c.on("ask", (cb) => cb(c.id.length)));
      const answers = await servers[0].timeout(3000).emitWithAck("ask");
      assert.strictEqual(answers.length, 2);
      servers[0].disconnectSockets();
      await until(() => !clients[1].connected);
      for (const e of ends) await e();
    });

test("graphql-redis-subscriptions: subscribe, patterns, iterators", async () => {
  const { RedisPubSub } = require("graphql-redis-subscriptions");
  const p = new RedisPubSub({ publisher: ioredis(), subscriber: ioredis() });
  const got = [];
  const id = await p.subscribe("T", (m) => got.push(m));
  await p.subscribe("P.*", (m) => got.push(m), { pattern: true });
  await p.publish("T", { a: 1 });
  await p.publish("P.x", { b: 2 });
  await until(() => got.length === 2);
  const it = p.asyncIterator(["T"]);
  const next = it.next();
  await pause(100);
  await p.publish("T", { c: 3 });
  assert.deepStrictEqual((await next).value, { c: 3 });
  p.unsubscribe(id);
  await it.return();
});

test("@nestjs/microservices: requests and events", async () => {
  const { ServerRedis, ClientRedis } = require("@nestjs/microservices");
  const { of, lastValueFrom } = require("rxjs");
  const o = { host: "127.0.0.1", port: PORT, wildcards: true };
  const s = new ServerRedis(o);
  const events = [];
  s.addHandler("sum", async (d) => of(d.reduce((a, b) => a + b, 0)));
  s.addHandler("seen*", async (d) => events.push(d), true);
  await new Promise((r) => s.listen(r));
  await pause(200);
  const c = new ClientRedis(o);
  await c.connect();
  assert.strictEqual(await lastValueFrom(c.send("sum", [1, 2, 3])), 6);
  const many = await Promise.all(Array.from({ length: 200 }, (_, i) => lastValueFrom(c.send("sum", [i, 1]))));
  assert.deepStrictEqual(many.slice(0, 2), [1, 2]);
  await lastValueFrom(c.emit("seen1", 4));
  await until(() => events.length);
  c.close();
  s.close();
});

test("keyv and cache-manager: get, set, ttl, clear, iterate, wrap", async () => {
  const KeyvRedis = require("@keyv/redis").default;
  const { Keyv } = require("keyv");
  const { createCache } = require("cache-manager");
  const k = new Keyv({ store: new KeyvRedis(URL), namespace: "ns", useKeyPrefix: false });
  await k.set("a", { x: 1 });
  await k.set("b", 2, 50);
  assert.deepStrictEqual(await k.get("a"), { x: 1 });
  await pause(100);
  assert.strictEqual(await k.get("b"), undefined);
  await k.setMany([
    { key: "m1", value: 1 },
    { key: "m2", value: 2, ttl: 5000 },
  ]);
  assert.deepStrictEqual(await k.get(["m1", "m2", "no"]), [1, 2, undefined]);
  assert.deepStrictEqual(await k.hasMany(["m1", "no"]), [true, false]);
  assert.strictEqual(await k.delete(["m1", "a"]), true);
  const keys = [];
  for await (const [x] of k.iterator("ns")) keys.push(x);
  assert.deepStrictEqual(keys, ["m2"]);
  await k.clear();
  assert.strictEqual(await k.get("m2"), undefined);
  const cache = createCache({ stores: [k], ttl: 5000 });
  let n = 0;
  for (let i = 0; i < 3; i++) assert.strictEqual(await cache.wrap("w", () => ++n), 1);
  await cache.mset([{ key: "q", value: 1 }]);
  assert.deepStrictEqual(await cache.mget(["q", "w"]), [1, 1]);
  await k.disconnect();
});

test("redis-streams-broker: groups, pending, drop", async () => {
  const { StreamChannelBroker } = require("redis-streams-broker");
  const b = new StreamChannelBroker(io, "chan");
  const id = await b.publish({ a: "1", b: "2" });
  const g = await b.joinConsumerGroup("G", "0");
  const seen = [];
  const h = await g.subscribe(
    "C",
    async (ps) => {
      for (const p of ps) {
        seen.push(p.payload);
        await p.markAsRead(seen.length > 1);
      }
    },
    50,
  );
  await until(() => seen.length === 1);
  await b.publish({ c: "3" }, 10);
  await until(() => seen.length === 2);
  assert.deepStrictEqual(seen[0], { a: "1", b: "2" });
  assert.strictEqual((await g.pendingSummary()).total, 0);
  assert((await b.memoryFootprint()) > 0);
  g.unsubscribe(h);
  await pause(100);
  await b.destroy();
});

test("@moleculer/channels: Redis streams with retries, dead letters", async () => {
  const { ServiceBroker } = require("moleculer");
  const Channels = require("@moleculer/channels").Middleware;
  const seen = [],
    dead = [];
  let fails = 0;
  const b = new ServiceBroker({
    logger: false,
    middlewares: [
      Channels({
        adapter: { type: "Redis", options: { redis: { port: PORT, host: "127.0.0.1" }, redisOpt: 1 } },
      }),
    ],
  });
  b.createService({
    name: "a",
    channels: {
      "o.created": {
        group: "g",
        redis: { minIdleTime: 100, claimInterval: 50, startID: "0", readTimeoutInterval: 50 },
        maxRetries: 2,
        deadLettering: { enabled: true, queueName: "DEAD" },
        handler(p) {
          if (p.bad) {
            fails++;
            throw new Error("bad");
          }
          seen.push(p.i);
        },
      },
      DEAD: {
        group: "g",
        redis: { startID: "0" },
        handler(p) {
          dead.push(p);
        },
      },
    },
  });
  await b.start();
  for (let i = 0; i < 100; i++) await b.sendToChannel("o.created", { i });
  await b.sendToChannel("o.created", { bad: 1 });
  await until(() => seen.length === 100 && dead.length === 1);
  assert.strictEqual(fails >= 1, true);
  await b.stop();
});
