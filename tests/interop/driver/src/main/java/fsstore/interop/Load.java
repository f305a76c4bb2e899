package fsstore.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A producer that keeps a rate: each thread sends synchronously to queues of its own, so that a queue's bodies count up:
 * {@code <queue> <sequence> <when sent, epoch ms> <padding>}. A thread that fell behind its schedule sends on without a pause until it caught up.
 */
final class Load {
    private static final int ROUTE_TRIES = 600;
    private static final long ROUTE_PAUSE_MS = 100;

    private final DefaultMQProducer producer;
    private final String topic;
    private final int queues;
    private final int bodyBytes;
    private final double rate;
    private final int seconds;
    private final Latencies sends = new Latencies();
    private final AtomicInteger failures = new AtomicInteger();
    private final AtomicIntegerArray sentInSecond;
    private final List<Thread> threads = new ArrayList<>();
    private final List<Integer> sentToQueue = new ArrayList<>();
    private final AtomicLong lastSent = new AtomicLong();
    private long began;

    Load(DefaultMQProducer producer, JsonObject request) {
        this.producer = producer;
        topic = request.get("topic").getAsString();
        queues = request.get("queues").getAsInt();
        bodyBytes = request.get("body_bytes").getAsInt();
        rate = request.get("rate").getAsDouble();
        seconds = request.get("seconds").getAsInt();
        sentInSecond = new AtomicIntegerArray(4 * seconds + 60);
    }

    void start() throws Exception {
        String broker = awaitRoute();
        began = System.nanoTime();
        lastSent.set(began);
        for (int queue = 0; queue < queues; queue++) {
            sentToQueue.add(0);
            MessageQueue target = new MessageQueue(topic, broker, queue);
            Thread thread = new Thread(() -> run(target), "load-" + queue);
            threads.add(thread);
            thread.start();
        }
    }

    /** The name of the broker that has the topic, once the name server knows it. */
    private String awaitRoute() throws Exception {
        for (int tries = 0;; tries++) {
            try {
                return producer.fetchPublishMessageQueues(topic).get(0).getBrokerName();
            } catch (MQClientException error) {
                if (tries == ROUTE_TRIES) {
                    throw error;
                }
                Thread.sleep(ROUTE_PAUSE_MS);
            }
        }
    }

    private void run(MessageQueue target) {
        int total = (int) (rate * seconds / queues);
        double nanosecondsEach = 1e9 * queues / rate;
        String padding = "x".repeat(bodyBytes);
        int sequence = 0;
        while (sequence < total) {
            long due = began + (long) (sequence * nanosecondsEach);
            for (long now = System.nanoTime(); now < due; now = System.nanoTime()) {
                LockSupport.parkNanos(due - now);
            }
            byte[] body = (target.getQueueId() + " " + sequence + " " + System.currentTimeMillis() + " " + padding).getBytes(StandardCharsets.US_ASCII);
            if (!send(target, new Message(topic, "load", "k" + target.getQueueId() + "-" + sequence, body))) {
                break;
            }
            sequence++;
        }
        synchronized (sentToQueue) {
            sentToQueue.set(target.getQueueId(), sequence);
        }
    }

    private boolean send(MessageQueue target, Message message) {
        long sent = System.nanoTime();
        try {
            producer.send(message, target);
        } catch (Exception error) {
            failures.incrementAndGet();
            return false;
        }
        long now = System.nanoTime();
        lastSent.accumulateAndGet(now, Math::max);
        sends.add(now - sent);
        sentInSecond.incrementAndGet((int) Math.min((now - began) / 1_000_000_000L, sentInSecond.length() - 1));
        return true;
    }

    JsonObject finish() throws InterruptedException {
        for (Thread thread : threads) {
            thread.join();
        }
        double took = (lastSent.get() - began) / 1e9;
        producer.shutdown();
        JsonObject answer = new JsonObject();
        answer.add("sends", sends.figures());
        answer.addProperty("failures", failures.get());
        answer.addProperty("seconds", took);
        JsonArray bySecond = new JsonArray();
        for (int second = 0; second < took; second++) {
            bySecond.add(sentInSecond.get(second));
        }
        answer.add("by_second", bySecond);
        JsonArray byQueue = new JsonArray();
        sentToQueue.forEach(byQueue::add);
        answer.add("by_queue", byQueue);
        return answer;
    }
}
