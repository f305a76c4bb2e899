package fsstore.interop;

import org.apache.rocketmq.logging.ch.qos.logback.classic.Level;
import org.apache.rocketmq.logging.ch.qos.logback.classic.Logger;
import org.apache.rocketmq.logging.ch.qos.logback.classic.LoggerContext;
import org.apache.rocketmq.logging.ch.qos.logback.classic.spi.ILoggingEvent;
import org.apache.rocketmq.logging.ch.qos.logback.core.AppenderBase;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.logging.org.slf4j.LoggerFactory;

/** Collects every line that RocketMQ logs at WARN or ERROR, until somebody asks for them. */
final class LogTap extends AppenderBase<ILoggingEvent> {
    private final List<String> lines = new ArrayList<>();

    static LogTap install() {
        LoggerContext context = (LoggerContext) LoggerFactory.getILoggerFactory();
        context.reset();
        LogTap tap = new LogTap();
        tap.setContext(context);
        tap.start();
        Logger root = context.getLogger(Logger.ROOT_LOGGER_NAME);
        root.setLevel(Level.WARN);
        root.addAppender(tap);
        return tap;
    }

    @Override
    protected synchronized void append(ILoggingEvent event) {
        String thrown = event.getThrowableProxy() == null ? "" : " | " + event.getThrowableProxy().getClassName()
            + ": " + event.getThrowableProxy().getMessage();
        lines.add(event.getLevel() + " " + event.getLoggerName() + " " + event.getFormattedMessage() + thrown);
    }

    synchronized List<String> drain() {
        List<String> drained = new ArrayList<>(lines);
        lines.clear();
        return drained;
    }
}
