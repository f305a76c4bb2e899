package fsstore.interop;

import java.io.IOException;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.dledger.DLedgerCommitLog;
import org.apache.rocketmq.store.ha.DefaultHAService;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** What RocketMQ 5.x names or places differently from 4.9. */
final class Line {
    private Line() {
    }

    static DefaultMessageStore store(MessageStoreConfig config, BrokerConfig broker) throws Exception {
        BrokerStatsManager stats = new BrokerStatsManager("interop", false);
        return new DefaultMessageStore(config, stats, (topic, queue, offset, tags, time, bits, properties) -> { }, broker,
            new ConcurrentHashMap<>());
    }

    static void keepOnLoopback(DefaultMessageStore store) throws Exception {
        if (store.getCommitLog() instanceof DLedgerCommitLog) { // its group replicates, by a server of its own
            Object server = ((DLedgerCommitLog) store.getCommitLog()).getdLedgerServer();
            Loopback.bindServers(Loopback.read(server, "dLedgerRpcService"));
            return;
        }
        Loopback.write(store, "haService", new DefaultHAService() {
            @Override
            public void init(DefaultMessageStore owner) throws IOException { // the address is read from here on
                super.init(owner);
                try {
                    Loopback.bindReplication(this);
                } catch (Exception error) {
                    throw new IOException(error);
                }
            }
        });
    }

    static void keepOnLoopback(BrokerController broker, DefaultMessageStore store) throws Exception {
        if (broker.getReplicasManager() == null) {
            keepOnLoopback(store);
        } else {
            Controlled.keepOnLoopback(broker, store);
        }
    }

    static void awaitRole(BrokerController broker) throws InterruptedException {
        if (broker.getReplicasManager() != null) {
            Controlled.awaitRole(broker);
        }
    }

    static void setAttribute(TopicConfig topic, String name, String value) {
        topic.getAttributes().put("+" + name, value);
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
        ConsumeQueue found = (ConsumeQueue) store.findConsumeQueue(topic, queue);
        return found.getIndexBuffer(index);
    }

    static MQClientAPIImpl clientApi(DefaultMQProducer producer) {
        return producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
    }

    static QueryMessageResult queryByTag(DefaultMessageStore store, String topic, String tag, int limit, long begin, long end) {
        return store.queryMessage(topic, tag, limit, begin, end, MessageConst.INDEX_TAG_TYPE, null);
    }
}
