package fsstore.interop;

import io.netty.bootstrap.ServerBootstrap;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.Collections;
import java.util.Map;
import org.apache.rocketmq.remoting.netty.NettyRemotingServer;

/**
 * Keeps RocketMQ's servers on the loopback interface. 4.9 has no setting for it, and in no version does the store's
 * replication port have one, so the address is put into their fields before they are started.
 */
final class Loopback {
    private Loopback() {
    }

    /** A store's replication service that does not listen yet: its port, on loopback. */
    static void bindReplication(Object service) throws Exception {
        Object acceptor = read(service, "acceptSocketService");
        for (Class<?> type = acceptor.getClass(); type != null; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (SocketAddress.class.isAssignableFrom(field.getType())) {
                    field.setAccessible(true);
                    int port = ((InetSocketAddress) field.get(acceptor)).getPort();
                    field.set(acceptor, new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
                    return;
                }
            }
        }
        throw new IllegalStateException("the replication port has no address to set");
    }

    /** Every remoting server that a controller holds, itself or in a map, and that has not been started yet. */
    static void bindServers(Object controller) throws Exception {
        for (Class<?> type = controller.getClass(); type != null; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                field.setAccessible(true);
                Object value = field.get(controller);
                for (Object candidate : value instanceof Map ? ((Map<?, ?>) value).values() : Collections.singleton(value)) {
                    if (candidate instanceof NettyRemotingServer) {
                        write(candidate, "serverBootstrap", new LoopbackBootstrap());
                    }
                }
            }
        }
    }

    static Object read(Object owner, String name) throws Exception {
        return find(owner, name).get(owner);
    }

    static void write(Object owner, String name, Object value) throws Exception {
        find(owner, name).set(owner, value);
    }

    private static Field find(Object owner, String name) throws NoSuchFieldException {
        for (Class<?> type = owner.getClass(); type != null; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (field.getName().equals(name)) {
                    field.setAccessible(true);
                    return field;
                }
            }
        }
        throw new NoSuchFieldException(owner.getClass() + "." + name);
    }

    private static final class LoopbackBootstrap extends ServerBootstrap {
        @Override
        public ServerBootstrap localAddress(SocketAddress address) {
            int port = ((InetSocketAddress) address).getPort();
            return super.localAddress(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
        }

        @Override
        public ServerBootstrap localAddress(int port) {
            return super.localAddress(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
        }
    }
}
