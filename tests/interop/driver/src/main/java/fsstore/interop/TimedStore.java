package fsstore.interop;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.concurrent.CompletableFuture;
import org.apache.rocketmq.store.MessageStore;

/** A broker's store with a stop watch: how long each put takes, from the broker's call to its result. */
final class TimedStore {
    private TimedStore() {
    }

    /** {@code store} with every put's duration added to {@code puts}. */
    static MessageStore around(MessageStore store, Latencies puts) {
        return (MessageStore) Proxy.newProxyInstance(TimedStore.class.getClassLoader(), new Class<?>[] {MessageStore.class},
            (proxy, method, arguments) -> {
                long began = System.nanoTime();
                try {
                    Object result = method.invoke(store, arguments);
                    if (method.getName().startsWith("asyncPutMessage")) {
                        ((CompletableFuture<?>) result).whenComplete((put, error) -> puts.add(System.nanoTime() - began));
                    }
                    return result;
                } catch (InvocationTargetException error) {
                    throw error.getCause();
                }
            });
    }
}
