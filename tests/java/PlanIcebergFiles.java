import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableScan;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.expressions.Literal;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.types.Type;

/**
 * Plans scans by Apache Iceberg itself: for each line "table TAB column TAB value" the files that may
 * hold such rows, as "line TAB spec TAB folder of the partition TAB path"; "*" for all, "\\N" for null.
 */
public class PlanIcebergFiles {
  public static void main(String[] given) throws Exception {
    JdbcCatalog catalog = new JdbcCatalog();
    catalog.setConf(new Configuration());
    Map<String, String> how =
        Map.of("uri", given[0], "warehouse", given[1], "jdbc.schema-version", "V1");
    catalog.initialize("default", how);
    BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
    int number = 0;
    for (String line = asked.readLine(); line != null; line = asked.readLine()) {
      String[] parts = line.split("\t", -1);
      Table table = catalog.loadTable(TableIdentifier.parse(parts[0]));
      TableScan scan = table.newScan();
      if (!parts[1].equals("*")) {
        scan = scan.filter(filter(table, parts[1], parts[2]));
      }
      try (CloseableIterable<FileScanTask> tasks = scan.planFiles()) {
        for (FileScanTask task : tasks) {
          String folder = task.spec().partitionToPath(task.file().partition());
          Object path = task.file().location();
          System.out.println(number + "\t" + task.spec().specId() + "\t" + folder + "\t" + path);
        }
      }
      number++;
    }
  }

  private static Expression filter(Table table, String column, String value) {
    if (value.equals("\\N")) {
      return Expressions.isNull(column);
    }
    Type type = table.schema().findField(column).type();
    switch (type.typeId()) {
      case BOOLEAN:
        return Expressions.equal(column, Boolean.parseBoolean(value));
      case INTEGER:
        return Expressions.equal(column, Integer.parseInt(value));
      case LONG:
        return Expressions.equal(column, Long.parseLong(value));
      case FLOAT:
        return Expressions.equal(column, Float.parseFloat(value));
      case DOUBLE:
        return Expressions.equal(column, Double.parseDouble(value));
      case BINARY:
        byte[] bytes = java.util.HexFormat.of().parseHex(value);
        return Expressions.equal(column, java.nio.ByteBuffer.wrap(bytes));
      case STRING:
        return Expressions.equal(column, value);
      default:
        return Expressions.equal(column, Literal.of(value).to(type).value());
    }
  }
}
