import java.util.ArrayList;
import java.util.Base64;
import java.util.HashSet;
import java.util.List;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.client.Scan;
import org.apache.hadoop.hbase.client.Table;

/**
 * Flushes a table of HBase, runs a major compaction, and reads the table with HBase's own client.
 *
 * <p>Argument: the table, in whose files something is hidden: the compaction is over when nothing is
 * any more, within a minute. Prints a line a cell, raw: row, column, timestamp, kind, value; bytes in
 * Base64 behind a "+".
 */
class CompactTable {
  public static void main(String[] args) throws Exception {
    var name = TableName.valueOf(args[0]);
    try (var connection = ConnectionFactory.createConnection(HBaseConfiguration.create());
        var admin = connection.getAdmin();
        var table = connection.getTable(name)) {
      admin.flush(name);
      admin.majorCompact(name);
      for (int tries = 0; tries < 300; tries++) {
        var lines = whole(table);
        if (lines != null) {
          lines.forEach(System.out::println);
          return;
        }
        Thread.sleep(200);
      }
    }
    throw new IllegalStateException("hidden cells or deletes are still there");
  }

  /** All cells as lines; null where one is hidden, or hides others. */
  private static List<String> whole(Table table) throws Exception {
    var lines = new ArrayList<String>();
    var columns = new HashSet<String>();
    try (var rows = table.getScanner(new Scan().setRaw(true).readAllVersions())) {
      for (Result row : rows) {
        for (Cell cell : row.rawCells()) {
          var column = text(CellUtil.cloneRow(cell)) + " " + text(CellUtil.cloneQualifier(cell));
          if (cell.getType() != Cell.Type.Put || !columns.add(column)) {
            return null;
          }
          lines.add(
              column
                  + " "
                  + cell.getTimestamp()
                  + " "
                  + cell.getType()
                  + " "
                  + text(CellUtil.cloneValue(cell)));
        }
      }
    }
    return lines;
  }

  private static String text(byte[] bytes) {
    return "+" + Base64.getEncoder().encodeToString(bytes);
  }
}
