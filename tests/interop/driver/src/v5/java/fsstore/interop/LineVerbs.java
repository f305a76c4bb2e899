package fsstore.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Base64;
import java.util.Collections;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.common.utils.StartAndShutdown;
import org.apache.rocketmq.proxy.ProxyStartup;
import org.apache.rocketmq.proxy.config.ConfigurationManager;
import org.apache.rocketmq.proxy.grpc.GrpcServerBuilder;
import org.apache.rocketmq.proxy.grpc.v2.GrpcMessagingApplication;
import org.apache.rocketmq.proxy.metrics.ProxyMetricsManager;
import org.apache.rocketmq.proxy.processor.DefaultMessagingProcessor;
import org.apache.rocketmq.proxy.service.cert.TlsCertificateManager;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;

/** What only this line of RocketMQ can do: a proxy in local mode, and clients that speak gRPC to it. */
final class LineVerbs {
    private static final Duration AWAIT = Duration.ofSeconds(3);

    private final Deque<StartAndShutdown> parts = new ArrayDeque<>();

    JsonObject carryOut(String verb, JsonObject request, BrokerController broker) throws Exception {
        switch (verb) {
            case "controller_start": return Controlled.start(request);
            case "proxy_start": return startProxy(request, broker);
            case "proxy_stop": return stopProxy();
            case "broker_group": return makeGroup(request, broker);
            case "grpc_send": return send(request);
            case "grpc_receive": return receive(request);
            default: throw new IllegalArgumentException("no such verb: " + verb);
        }
    }

    /** As ProxyStartup does, on loopback: {@code port}; {@code settings} are written to the file {@code path}. */
    private JsonObject startProxy(JsonObject request, BrokerController broker) throws Exception {
        Path file = Path.of(request.get("path").getAsString());
        Files.writeString(file, request.getAsJsonObject("settings").toString());
        System.setProperty("com.rocketmq.proxy.configPath", file.toString());
        ConfigurationManager.initEnv();
        ConfigurationManager.initConfig();
        ProxyStartup.initThreadPoolMonitor();
        ProxyMetricsManager.initLocalMode(broker.getBrokerMetricsManager(), ConfigurationManager.getProxyConfig());
        DefaultMessagingProcessor processor = DefaultMessagingProcessor.createForLocalMode(broker);
        GrpcMessagingApplication application = GrpcMessagingApplication.create(processor);
        int port = request.get("port").getAsInt();
        GrpcServerBuilder server = GrpcServerBuilder.newBuilder(ProxyStartup.createServerExecutor(), port, new TlsCertificateManager());
        NettyServerBuilder netty = (NettyServerBuilder) Loopback.read(server, "serverBuilder");
        @SuppressWarnings("unchecked")
        List<SocketAddress> addresses = (List<SocketAddress>) Loopback.read(netty, "listenAddresses");
        addresses.clear();
        addresses.add(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
        for (StartAndShutdown part : List.of(processor, application,
            server.addService(application).configInterceptor().shutdownTime(1, TimeUnit.SECONDS).build())) {
            part.start();
            parts.push(part);
        }
        return new JsonObject();
    }

    private JsonObject stopProxy() throws Exception {
        try (Hurry hurry = new Hurry("NettyEventExecutor")) {
            while (!parts.isEmpty()) {
                parts.pop().shutdown();
            }
        }
        return new JsonObject();
    }

    /** Makes the consumer group {@code group}: a proxy wants it there beforehand. */
    private static JsonObject makeGroup(JsonObject request, BrokerController broker) {
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName(request.get("group").getAsString());
        broker.getSubscriptionGroupManager().updateSubscriptionGroupConfig(group);
        return new JsonObject();
    }

    private static ClientConfiguration configuration(JsonObject request) {
        return ClientConfiguration.newBuilder().setEndpoints("127.0.0.1:" + request.get("port").getAsInt()).enableSsl(false).build();
    }

    /**
     * Sends {@code messages}: {@code topic}, {@code body}, {@code key}, {@code tag}; with {@code group} in order,
     * with {@code deliver_in_ms} later, with {@code fate} as a transaction. Their ids.
     */
    private static JsonObject send(JsonObject request) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        JsonArray ids = new JsonArray();
        try (Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration(request))
            .setTransactionChecker(view -> TransactionResolution.UNKNOWN).build()) {
            for (JsonElement element : request.getAsJsonArray("messages")) {
                JsonObject fields = element.getAsJsonObject();
                MessageBuilder builder = provider.newMessageBuilder().setTopic(fields.get("topic").getAsString())
                    .setBody(Base64.getDecoder().decode(fields.get("body").getAsString()))
                    .setKeys(fields.get("key").getAsString()).setTag(fields.get("tag").getAsString()).addProperty("by", "gRPC");
                if (fields.has("group")) {
                    builder.setMessageGroup(fields.get("group").getAsString());
                }
                if (fields.has("deliver_in_ms")) {
                    builder.setDeliveryTimestamp(System.currentTimeMillis() + fields.get("deliver_in_ms").getAsLong());
                }
                ids.add(send(producer, builder.build(), fields));
            }
        }
        JsonObject answer = new JsonObject();
        answer.add("ids", ids);
        return answer;
    }

    private static String send(Producer producer, Message message, JsonObject fields) throws Exception {
        if (!fields.has("fate")) {
            return producer.send(message).getMessageId().toString();
        }
        Transaction transaction = producer.beginTransaction();
        SendReceipt receipt = producer.send(message, transaction);
        if ("commit".equals(fields.get("fate").getAsString())) {
            transaction.commit();
        } else {
            transaction.rollback();
        }
        return receipt.getMessageId().toString();
    }

    /**
     * Receives {@code count} messages of {@code topic} as {@code group}, each hidden for {@code hidden_ms}, and acknowledges
     * those whose body is in {@code acknowledged}, or all without it. Bodies, and how often each was delivered.
     */
    private static JsonObject receive(JsonObject request) throws Exception {
        JsonArray received = new JsonArray();
        long limit = System.currentTimeMillis() + request.get("limit_ms").getAsLong();
        try (SimpleConsumer consumer = ClientServiceProvider.loadService().newSimpleConsumerBuilder()
            .setClientConfiguration(configuration(request)).setConsumerGroup(request.get("group").getAsString())
            .setSubscriptionExpressions(Collections.singletonMap(request.get("topic").getAsString(), FilterExpression.SUB_ALL))
            .setAwaitDuration(AWAIT).build()) {
            while (received.size() < request.get("count").getAsInt() && System.currentTimeMillis() < limit) {
                for (MessageView view : consumer.receive(16, Duration.ofMillis(request.get("hidden_ms").getAsLong()))) {
                    String body = StandardCharsets.UTF_8.decode(view.getBody()).toString();
                    if (!request.has("acknowledged") || request.getAsJsonArray("acknowledged").toString().contains('"' + body + '"')) {
                        consumer.ack(view);
                    }
                    JsonObject one = new JsonObject();
                    one.addProperty("body", body);
                    one.addProperty("attempt", view.getDeliveryAttempt());
                    received.add(one);
                }
            }
        }
        JsonObject answer = new JsonObject();
        answer.add("received", received);
        return answer;
    }
}
