package fsstore.interop;

import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** What RocketMQ 4.9 names or places differently from 5.x. */
final class Line {
    private Line() {
    }

    static DefaultMessageStore store(MessageStoreConfig config, BrokerConfig broker) throws Exception {
        BrokerStatsManager stats = new BrokerStatsManager("interop", false);
        return new DefaultMessageStore(config, stats, (topic, queue, offset, tags, time, bits, properties) -> { }, broker);
    }

    static void keepOnLoopback(DefaultMessageStore store) throws Exception {
        Loopback.bindReplication(Loopback.read(store, "haService"));
    }

    static void keepOnLoopback(BrokerController broker, DefaultMessageStore store) throws Exception {
        keepOnLoopback(store);
    }

    static void awaitRole(BrokerController broker) {
    }

    static void setAttribute(TopicConfig topic, String name, String value) {
        throw new UnsupportedOperationException("4.9 knows no attributes of topics");
    }

    static MessageExt message(String propertiesString) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setPropertiesString(propertiesString);
        return message;
    }

    static PutMessageResult put(DefaultMessageStore store, MessageExt message) {
        return store.putMessage((MessageExtBrokerInner) message);
    }

    static SelectMappedBufferResult entries(DefaultMessageStore store, String topic, int queue, long index) {
        ConsumeQueue found = store.findConsumeQueue(topic, queue);
        return found.getIndexBuffer(index);
    }

    static MQClientAPIImpl clientApi(DefaultMQProducer producer) {
        return producer.getDefaultMQProducerImpl().getmQClientFactory().getMQClientAPIImpl();
    }

    static QueryMessageResult queryByTag(DefaultMessageStore store, String topic, String tag, int limit, long begin, long end) {
        throw new UnsupportedOperationException("4.9 keeps no tags in its index");
    }
}
