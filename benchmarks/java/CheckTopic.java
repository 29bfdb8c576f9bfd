import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.zip.CRC32;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads a topic to its end, read_committed, and prints as JSON how many rows it has, the sum of their
 * hashes (see rows.py), and how many were appended in each tenth of a second.
 *
 * <p>Arguments: bootstrap servers, topic.
 */
class CheckTopic {
  public static void main(String[] args) {
    var config = new HashMap<String, Object>(Map.of(
        "bootstrap.servers", args[0],
        "isolation.level", "read_committed",
        "max.poll.records", 20000,
        "max.partition.fetch.bytes", 8 << 20,
        "fetch.min.bytes", 1 << 20,
        "fetch.max.wait.ms", 50,
        "receive.buffer.bytes", 4 << 20));
    var bytes = new ByteArrayDeserializer();
    try (var consumer = new KafkaConsumer<byte[], byte[]>(config, bytes, bytes)) {
      var partitions = new ArrayList<TopicPartition>();
      consumer.partitionsFor(args[1]).forEach(p -> partitions.add(new TopicPartition(p.topic(), p.partition())));
      consumer.assign(partitions);
      consumer.seekToBeginning(partitions);
      var ends = consumer.endOffsets(partitions);
      var appended = new TreeMap<Long, Integer>();
      long rows = 0;
      long sum = 0;
      var crc = new CRC32();
      while (!ends.entrySet().stream().allMatch(e -> consumer.position(e.getKey()) >= e.getValue())) {
        for (var record : consumer.poll(Duration.ofMillis(100))) {
          rows++;
          sum += mixed(checksum(crc, record.key()) << 32 | checksum(crc, record.value()));
          appended.merge(record.timestamp() / 100 * 100, 1, Integer::sum);
        }
      }
      var times = new ArrayList<String>();
      appended.forEach((at, count) -> times.add("[" + at + "," + count + "]"));
      System.out.println("{\"rows\":" + rows + ",\"sum\":" + Long.toUnsignedString(sum)
          + ",\"appended\":[" + String.join(",", times) + "]}");
    }
  }

  private static long checksum(CRC32 crc, byte[] bytes) {
    crc.reset();
    if (bytes != null) {
      crc.update(bytes);
    }
    return crc.getValue();
  }

  private static long mixed(long x) {
    x = (x ^ (x >>> 30)) * 0xbf58476d1ce4e5b9L;
    x = (x ^ (x >>> 27)) * 0x94d049bb133111ebL;
    return x ^ (x >>> 31);
  }
}
