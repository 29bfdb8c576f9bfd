import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads a topic with Kafka's own consumer, CRCs checked, read_committed.
 *
 * <p>Arguments: bootstrap servers, topic, how many records to wait for at most a minute; reads on
 * half a second to see whether there are more. Prints a line a record: partition, offset, timestamp, key,
 * value, then each header's key and value; bytes in Base64, null as "-".
 */
class ReadTopic {
  public static void main(String[] args) {
    var config =
        Map.<String, Object>of(
            "bootstrap.servers", args[0],
            "isolation.level", "read_committed",
            "check.crcs", "true");
    var bytes = new ByteArrayDeserializer();
    try (var consumer = new KafkaConsumer<byte[], byte[]>(config, bytes, bytes)) {
      var partitions = new ArrayList<TopicPartition>();
      consumer.partitionsFor(args[1]).forEach(p -> partitions.add(new TopicPartition(p.topic(), p.partition())));
      consumer.assign(partitions);
      consumer.seekToBeginning(partitions);
      long wanted = Long.parseLong(args[2]);
      long deadline = System.nanoTime() + 60_000_000_000L;
      var out = new StringBuilder();
      long found = 0;
      long more = 1;
      while (System.nanoTime() < deadline && (found < wanted || more > 0)) {
        more = 0;
        for (var record : consumer.poll(Duration.ofMillis(500))) {
          print(record, out);
          more++;
        }
        found += more;
      }
      System.out.print(out);
    }
  }

  private static void print(ConsumerRecord<byte[], byte[]> record, StringBuilder out) {
    out.append(record.partition()).append(' ').append(record.offset()).append(' ').append(record.timestamp());
    out.append(' ').append(text(record.key())).append(' ').append(text(record.value()));
    for (Header header : record.headers()) {
      out.append(' ').append(text(header.key().getBytes(java.nio.charset.StandardCharsets.UTF_8)));
      out.append(' ').append(text(header.value()));
    }
    out.append('\n');
  }

  private static String text(byte[] bytes) {
    return bytes == null ? "-" : "=" + Base64.getEncoder().encodeToString(bytes);
  }
}
