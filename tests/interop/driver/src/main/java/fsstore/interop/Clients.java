package fsstore.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** RocketMQ's own clients: what applications send and consume through a live broker. */
final class Clients {
    private static final int SEND_TIMEOUT_MS = 30_000;
    private static final long CONSUME_LIMIT_MS = 180_000;
    private static final long POLL_MS = 20;
    private static final int MESSAGES_A_PULL = 32;

    private Load load;

    /**
     * Sends {@code messages} one after the other; a message with {@code items} goes out as a client's batch. With
     * {@code traced} the client also leaves its traces; {@code namespace} is the client's, null for none.
     */
    JsonObject send(JsonObject request) throws Exception {
        // Read by the producer's field initializers, so before it is made.
        System.setProperty("rocketmq.message.compressType", request.get("compress_type").getAsString());
        DefaultMQProducer producer = new DefaultMQProducer("interop-producer", null, request.get("traced").getAsBoolean(), null);
        if (!request.get("namespace").isJsonNull()) {
            producer.setNamespace(request.get("namespace").getAsString());
        }
        started(producer, request);
        JsonArray results = new JsonArray();
        try {
            for (JsonElement element : request.getAsJsonArray("messages")) {
                results.add(sendOne(producer, element.getAsJsonObject()));
            }
        } finally {
            end(producer::shutdown);
        }
        JsonObject answer = new JsonObject();
        answer.add("results", results);
        return answer;
    }

    private static <P extends DefaultMQProducer> P started(P producer, JsonObject request) throws Exception {
        producer.setNamesrvAddr(request.get("names").getAsString());
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.setInstanceName("interop-" + System.nanoTime());
        producer.setVipChannelEnabled(false);
        producer.start();
        return producer;
    }

    static void end(Runnable shutdown) throws InterruptedException {
        try (Hurry hurry = new Hurry("NettyEventExecutor")) {
            shutdown.run();
        }
    }

    private static JsonObject sendOne(DefaultMQProducer producer, JsonObject fields) throws Exception {
        SendResult result;
        if (fields.has("items")) {
            List<Message> batch = new ArrayList<>();
            for (JsonElement item : fields.getAsJsonArray("items")) {
                batch.add(message(fields.get("topic").getAsString(), item.getAsJsonObject()));
            }
            result = Routes.await(() -> producer.send(batch));
        } else {
            Message message = message(fields.get("topic").getAsString(), fields);
            result = Routes.await(() -> producer.send(message));
        }
        return result(result);
    }

    private static Message message(String topic, JsonObject fields) {
        Message message = new Message(topic, Base64.getDecoder().decode(fields.get("body").getAsString()));
        for (JsonElement pair : fields.getAsJsonArray("properties")) {
            String name = pair.getAsJsonArray().get(0).getAsString();
            String value = pair.getAsJsonArray().get(1).getAsString();
            switch (name) {
                case "KEYS": message.setKeys(value); break;
                case "TAGS": message.setTags(value); break;
                case "DELAY": message.setDelayTimeLevel(Integer.parseInt(value)); break;
                case "TIMER_DELAY_MS": MessageAccessor.putProperty(message, name, value); break; // as setDelayTimeMs of 5.x
                default: message.putUserProperty(name, value);
            }
        }
        return message;
    }

    private static JsonObject result(SendResult sent) {
        JsonObject fields = new JsonObject();
        fields.addProperty("status", sent.getSendStatus().name());
        fields.addProperty("unique_key", sent.getMsgId());
        fields.addProperty("queue", sent.getMessageQueue().getQueueId());
        fields.addProperty("queue_offset", sent.getQueueOffset());
        return fields;
    }

    /** Has the broker at {@code address} delete {@code topic}, as an administrator's tool does. */
    JsonObject deleteTopic(JsonObject request) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer("interop-administrator"), request);
        try {
            Line.clientApi(producer).deleteTopicInBroker(
                request.get("address").getAsString(), request.get("topic").getAsString(), SEND_TIMEOUT_MS);
        } finally {
            end(producer::shutdown);
        }
        return new JsonObject();
    }

    /** Sends {@code messages} as transactions; one whose {@code fate} is "commit" is committed, others are rolled back. */
    JsonObject sendTransactions(JsonObject request) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("interop-transactions");
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object fate) {
                return "commit".equals(fate) ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        started(producer, request);
        JsonArray results = new JsonArray();
        try {
            for (JsonElement element : request.getAsJsonArray("messages")) {
                JsonObject fields = element.getAsJsonObject();
                Message message = message(fields.get("topic").getAsString(), fields);
                String fate = fields.get("fate").getAsString();
                results.add(result(Routes.await(() -> producer.sendMessageInTransaction(message, fate))));
            }
        } finally {
            end(producer::shutdown);
        }
        JsonObject answer = new JsonObject();
        answer.add("results", results);
        return answer;
    }

    /**
     * Consumes {@code topic} as {@code group} until all its {@code count} messages are done with; every
     * {@code reject_every}th is given up, and ends in the group's dead letters. Answers the bodies that came, in base64.
     */
    JsonObject consume(JsonObject request) throws Exception {
        int rejectEvery = request.get("reject_every").getAsInt();
        String topic = request.get("topic").getAsString();
        AtomicInteger seen = new AtomicInteger();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.get("group").getAsString());
        consumer.setNamesrvAddr(request.get("names").getAsString());
        consumer.setInstanceName("interop-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(0);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.setVipChannelEnabled(false);
        consumer.subscribe(topic, "*");
        ConcurrentLinkedQueue<String> bodies = new ConcurrentLinkedQueue<>();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> bodies.add(Base64.getEncoder().encodeToString(message.getBody())));
            return seen.incrementAndGet() % rejectEvery == 0 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        startWithQueues(consumer, topic);
        try {
            awaitOffsets(consumer, topic, request.get("count").getAsLong());
        } finally {
            end(consumer::shutdown);
        }
        JsonArray consumed = new JsonArray();
        bodies.forEach(consumed::add);
        JsonObject answer = new JsonObject();
        answer.add("bodies", consumed);
        return answer;
    }

    /**
     * Every message of {@code topics} (name to number of queues) as a client is handed it, with the bounds of each queue;
     * {@code broker} is the broker's name.
     */
    JsonObject pull(JsonObject request) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("interop-puller");
        consumer.setNamesrvAddr(request.get("names").getAsString());
        consumer.setInstanceName("interop-" + System.nanoTime());
        consumer.setVipChannelEnabled(false);
        consumer.start();
        JsonArray lines = new JsonArray();
        try {
            for (Map.Entry<String, JsonElement> topic : request.getAsJsonObject("topics").entrySet()) {
                for (int queue = 0; queue < topic.getValue().getAsInt(); queue++) {
                    pull(consumer, new MessageQueue(topic.getKey(), request.get("broker").getAsString(), queue), lines);
                }
            }
        } finally {
            end(consumer::shutdown);
        }
        JsonObject answer = new JsonObject();
        answer.add("lines", lines);
        return answer;
    }

    private static void pull(DefaultMQPullConsumer consumer, MessageQueue queue, JsonArray lines) throws Exception {
        long next = Routes.await(() -> consumer.minOffset(queue));
        long end = consumer.maxOffset(queue);
        JsonObject bounds = new JsonObject();
        bounds.addProperty("queue", queue.getTopic());
        bounds.addProperty("q", queue.getQueueId());
        bounds.addProperty("min", next);
        bounds.addProperty("max", end);
        lines.add(bounds);
        while (next < end) {
            PullResult pulled = consumer.pull(queue, "*", next, MESSAGES_A_PULL);
            if (pulled.getPullStatus() != PullStatus.FOUND && pulled.getNextBeginOffset() <= next) {
                throw new IllegalStateException("nothing at " + next + " of " + queue + ": " + pulled);
            }
            if (pulled.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : pulled.getMsgFoundList()) {
                    lines.add(Records.pulled(queue, message));
                }
            }
            next = pulled.getNextBeginOffset();
        }
    }

    /** Sends a request to {@code topic}, which a consumer of {@code group} answers; the body of the answer. */
    JsonObject requestReply(JsonObject request) throws Exception {
        String topic = request.get("topic").getAsString();
        DefaultMQProducer answers = started(new DefaultMQProducer("interop-answers"), request);
        DefaultMQProducer requests = started(new DefaultMQProducer("interop-requests"), request);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.get("group").getAsString());
        consumer.setNamesrvAddr(request.get("names").getAsString());
        consumer.setInstanceName("interop-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setVipChannelEnabled(false);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                for (MessageExt message : messages) {
                    answers.send(MessageUtil.createReplyMessage(message, request.get("answer").getAsString().getBytes(StandardCharsets.UTF_8)));
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            } catch (Exception error) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
        });
        startWithQueues(consumer, topic);
        try {
            Message asked = message(topic, request.getAsJsonObject("message"));
            Message answered = Routes.await(() -> requests.request(asked, SEND_TIMEOUT_MS));
            awaitOffsets(consumer, topic, 1); // the answer is here before whoever gave it is done
            JsonObject answer = new JsonObject();
            answer.addProperty("answer", new String(answered.getBody(), StandardCharsets.UTF_8));
            return answer;
        } finally {
            end(consumer::shutdown);
            end(requests::shutdown);
            end(answers::shutdown);
        }
    }

    /** Starts it and waits until it has queues of its own: left alone, it asks again after 20 s when the first answer was none. */
    private static void startWithQueues(DefaultMQPushConsumer consumer, String topic) throws Exception {
        consumer.start();
        DefaultMQPushConsumerImpl inside = consumer.getDefaultMQPushConsumerImpl();
        long limit = System.currentTimeMillis() + CONSUME_LIMIT_MS;
        while (inside.getRebalanceImpl().getProcessQueueTable().keySet().stream().noneMatch(queue -> queue.getTopic().equals(topic))) {
            if (System.currentTimeMillis() > limit) {
                throw new IllegalStateException("the consumer never got a queue of " + topic);
            }
            Thread.sleep(POLL_MS);
            inside.doRebalance();
        }
    }

    /** A queue's offset moves when a message is consumed, or is safely given up. */
    private static void awaitOffsets(DefaultMQPushConsumer consumer, String topic, long count) throws Exception {
        OffsetStore offsets = consumer.getDefaultMQPushConsumerImpl().getOffsetStore();
        long limit = System.currentTimeMillis() + CONSUME_LIMIT_MS;
        for (long done = 0; done < count;) {
            if (System.currentTimeMillis() > limit) {
                throw new IllegalStateException("consumed " + done + " of " + count);
            }
            Thread.sleep(POLL_MS);
            done = 0;
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                done += Math.max(0, offsets.readOffset(queue, ReadOffsetType.READ_FROM_MEMORY));
            }
        }
    }

    /** Starts a load in the background: {@code rate} messages a second for {@code seconds}, see {@link Load}. */
    JsonObject produce(JsonObject request) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer("interop-load"), request);
        load = new Load(producer, request);
        load.start();
        return new JsonObject();
    }

    /** Waits for the end of the load; answers what it reached. */
    JsonObject produced() throws Exception {
        return load.finish();
    }
}
