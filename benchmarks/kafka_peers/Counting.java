import java.nio.file.Files;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.StateRestoreListener;

/**
 * The standard job in Kafka Streams, exactly once, with its settings as they come.
 *
 * <p>Arguments: servers, name, records, threads, "count" or "restore". Prints records a second: from the
 * first record to the last one that was handled; or of the changelog that is read back after the
 * state directory was lost.
 */
public final class Counting {
  private static final AtomicLong SEEN = new AtomicLong();
  private static final AtomicLong BEGUN = new AtomicLong();

  private static KafkaStreams streams(String name, Properties properties) {
    StreamsBuilder builder = new StreamsBuilder();
    builder
        .stream("views", Consumed.with(Serdes.String(), Serdes.Long()))
        .peek(
            (key, value) -> {
              BEGUN.compareAndSet(0, System.nanoTime());
              SEEN.incrementAndGet();
            })
        .groupByKey(Grouped.with(Serdes.String(), Serdes.Long()))
        .count(Materialized.as("per-user"))
        .toStream()
        .to(name + "-counts", Produced.with(Serdes.String(), Serdes.Long()));
    return new KafkaStreams(builder.build(), properties);
  }

  /** Sums up what is restored, and when. */
  private static final class Restoring implements StateRestoreListener {
    final AtomicLong records = new AtomicLong();
    final AtomicLong begun = new AtomicLong();
    volatile long ended;

    @Override
    public void onRestoreStart(TopicPartition where, String store, long first, long last) {
      begun.compareAndSet(0, System.nanoTime());
    }

    @Override
    public void onBatchRestored(TopicPartition where, String store, long last, long count) {
      records.addAndGet(count);
      ended = System.nanoTime();
    }

    @Override
    public void onRestoreEnd(TopicPartition where, String store, long count) {
      ended = System.nanoTime();
    }
  }

  public static void main(String[] arguments) throws Exception {
    long wanted = Long.parseLong(arguments[2]);
    Properties properties = new Properties();
    properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
    properties.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
    properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, arguments[3]);
    properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    properties.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
    properties.put(
        StreamsConfig.STATE_DIR_CONFIG, Files.createTempDirectory("strandline-streams").toString());
    properties.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");

    KafkaStreams counting = streams(arguments[1], properties);
    counting.start();
    while (SEEN.get() < wanted) {
      Thread.sleep(5);
    }
    double seconds = (System.nanoTime() - BEGUN.get()) / 1e9;
    counting.close(Duration.ofSeconds(30));
    counting.cleanUp();
    if (arguments[4].equals("count")) {
      System.out.println("rate " + wanted / seconds);
      return;
    }
    Restoring restoring = new Restoring();
    KafkaStreams again = streams(arguments[1], properties);
    again.setGlobalStateRestoreListener(restoring);
    again.start();
    while (again.state() != KafkaStreams.State.RUNNING || restoring.ended == 0) {
      Thread.sleep(5);
    }
    seconds = (restoring.ended - restoring.begun.get()) / 1e9;
    System.out.println("rate " + restoring.records.get() / seconds);
    again.close(Duration.ofSeconds(30));
    again.cleanUp();
  }
}
