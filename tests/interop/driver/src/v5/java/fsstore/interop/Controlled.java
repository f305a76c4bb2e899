package fsstore.interop;

import com.google.gson.JsonObject;
import java.io.IOException;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.ControllerConfig;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.controller.ControllerManager;
import org.apache.rocketmq.controller.impl.DLedgerController;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.ha.autoswitch.AutoSwitchHAService;

/** A controller, and what a broker with one needs, on loopback. */
final class Controlled {
    private static final int ROLE_TRIES = 600;
    private static final long ROLE_PAUSE_MS = 50;
    private static final int LOG_BYTES = 4 << 20;

    private Controlled() {
    }

    /**
     * Starts a controller on {@code port}, with its own store at {@code path}, and a name server on {@code names_port}. Both
     * end with the process.
     */
    static JsonObject start(JsonObject request) throws Exception {
        NettyServerConfig namesServer = new NettyServerConfig();
        namesServer.setListenPort(request.get("names_port").getAsInt());
        NamesrvController names = new NamesrvController(new NamesrvConfig(), namesServer);
        names.initialize();
        Loopback.bindServers(names);
        names.start();
        ControllerConfig config = new ControllerConfig();
        config.setControllerDLegerGroup("controllers");
        config.setControllerDLegerPeers("n0-127.0.0.1:" + request.get("port").getAsInt());
        config.setControllerDLegerSelfId("n0");
        config.setControllerStorePath(request.get("path").getAsString());
        config.setMappedFileSize(LOG_BYTES);
        config.setScanNotActiveBrokerInterval(500);
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(request.get("port").getAsInt());
        ControllerManager manager = new ControllerManager(config, server, new NettyClientConfig());
        manager.initialize();
        Object raft = Loopback.read((DLedgerController) manager.getController(), "dLedgerServer");
        Loopback.bindServers(Loopback.read(raft, "dLedgerRpcService"));
        manager.start();
        return new JsonObject();
    }

    /** Replication of a broker with a controller, which has been initialized and not started. */
    static void keepOnLoopback(BrokerController broker, DefaultMessageStore store) throws Exception {
        AutoSwitchHAService service = new AutoSwitchHAService() {
            @Override
            public void init(DefaultMessageStore owner) throws IOException {
                super.init(owner);
                try {
                    Loopback.bindReplication(this);
                } catch (Exception error) {
                    throw new IOException(error);
                }
            }
        };
        Loopback.write(store, "haService", service);
        Loopback.write(broker.getReplicasManager(), "haService", service);
    }

    /** Returns when the controller has given the broker a role. */
    static void awaitRole(BrokerController broker) throws InterruptedException {
        for (int tries = 0; !"RUNNING".equals(String.valueOf(broker.getReplicasManager().getState())); tries++) {
            if (tries == ROLE_TRIES) {
                throw new IllegalStateException("the controller gave the broker no role");
            }
            Thread.sleep(ROLE_PAUSE_MS);
        }
        broker.registerBrokerAll(false, false, true);
    }
}
