package airflow_eos;

import java.io.File;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.BiFunction;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.streaming.WriteToStream;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.streaming.Sink;
import org.apache.spark.sql.execution.streaming.runtime.StreamingQueryWrapper;
import org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink;
import org.apache.spark.sql.streaming.StreamingQuery;
import org.apache.spark.sql.streaming.StreamingQueryListener;
import py4j.ClientServer;
import scala.runtime.BoxedUnit;

/**
 * The sink of one query, which its JVM runs: {@code writeStream.format("eos")}.
 *
 * <p>Whatever decides anything is Python's ({@code airflow_eos/sinks/format.py}), in a process that
 * this sink starts while Spark analyses the query, before it reads the query's logs. That process is
 * the driver of the protocol: it refuses, takes the term, recovers, and gives back the plan, with
 * its tasks in it. It is called for each batch in Spark's own thread, as a function given to {@code
 * foreachBatch} is.
 */
public final class EosSink implements Sink {
  private static final long SOON_S = 60;

  private final SparkSession session;
  private final Map<String, String> options;
  private final CompletableFuture<Dataset<Row>> planned = new CompletableFuture<>();
  private final CompletableFuture<StreamingQuery> started = new CompletableFuture<>();
  private WriteToStream query;
  private volatile BiFunction<Dataset<Row>, Long, Boolean> batch;
  private volatile String ended;

  EosSink(SparkSession session, Map<String, String> options) {
    this.session = session;
    this.options = options;
  }

  /** Let the driver begin, and return the query with the plan that it gives. */
  LogicalPlan begin(WriteToStream written) {
    if (query != null) {
      return written; // analysed again
    }
    query = written;
    Process driver = null;
    try {
      driver = start();
      var plan = (org.apache.spark.sql.classic.Dataset<Row>) planned.get();
      session.streams().addListener(new Watch());
      return written.withNewChildInternal(plan.queryExecution().analyzed());
    } catch (ExecutionException refused) {
      throw new IllegalArgumentException(refused.getCause().getMessage());
    } catch (Exception failed) {
      if (driver != null) {
        driver.destroyForcibly();
      }
      throw new IllegalStateException("eos: its Python driver did not start: " + failed, failed);
    }
  }

  private Process start() throws Exception {
    String token = UUID.randomUUID().toString() + UUID.randomUUID();
    ClientServer door =
        new ClientServer.ClientServerBuilder(this)
            .javaPort(0)
            .javaAddress(InetAddress.getLoopbackAddress())
            .authToken(token)
            .autoStartJavaServer(false)
            .build();
    Thread thread = Thread.currentThread();
    ClassLoader before = thread.getContextClassLoader(); // its threads look classes up there
    thread.setContextClassLoader(getClass().getClassLoader());
    try {
      door.startServer();
    } finally {
      thread.setContextClassLoader(before);
    }
    ProcessBuilder python = new ProcessBuilder(python(), "-m", "airflow_eos.sinks.format");
    Map<String, String> environment = python.environment();
    environment.put("PYSPARK_GATEWAY_PORT", "" + door.getJavaServer().getListeningPort());
    environment.put("PYSPARK_GATEWAY_SECRET", token);
    environment.put("PYSPARK_PIN_THREAD", "true");
    environment.keySet().removeAll(Set.of("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE"));
    String sparks = PythonUtils.sparkPythonPath();
    environment.merge("PYTHONPATH", sparks, (own, more) -> own + File.pathSeparator + more);
    Process driver = python.inheritIO().redirectInput(ProcessBuilder.Redirect.PIPE).start();
    Thread last = new Thread(() -> driver.onExit().completeOnTimeout(driver, 10, TimeUnit.SECONDS).join());
    Runtime.getRuntime().addShutdownHook(last); // this JVM outlives the driver's last word
    driver.onExit().thenAccept(over -> {
      ended = "eos: the Python driver of this query has ended, with status " + over.exitValue()
          + "; Spark's log has what it said. Start the query again: nothing is lost. Where it never"
          + " began, the Python that PYSPARK_PYTHON names may lack airflow-provider-eos.";
      planned.completeExceptionally(new IllegalStateException(ended));
      door.shutdown();
      Runtime.getRuntime().removeShutdownHook(last);
    });
    return driver;
  }

  /** Return the Python that spark-submit would run a driver with. */
  private String python() {
    String told = System.getenv().getOrDefault("PYSPARK_PYTHON", "python3");
    told = System.getenv().getOrDefault("PYSPARK_DRIVER_PYTHON", told);
    var conf = session.sparkContext().conf();
    return conf.get("spark.pyspark.driver.python", conf.get("spark.pyspark.python", told));
  }

  @Override
  public void addBatch(long id, Dataset<Row> rows) {
    if (ended != null) {
      throw new IllegalStateException(ended);
    }
    new ForeachBatchSink<Row>(
            (frame, number) -> {
              if (!batch.apply(frame, id)) {
                leave();
              }
              return BoxedUnit.UNIT;
            },
            ExpressionEncoder.apply(rows.schema()))
        .addBatch(id, rows);
  }

  /** Leave the batch to the next start, and end without an error, as a query that is stopped. */
  private void leave() {
    started.thenAcceptAsync(running -> {
      try {
        running.stop();
      } catch (Exception late) {
        ended = late.toString();
      }
    });
    try {
      TimeUnit.SECONDS.sleep(SOON_S);
    } catch (InterruptedException stopped) {
      // which Spark does to the thread of a query that it stops
    }
    throw new UncheckedIOException(new InterruptedIOException("the batch waits for the next start"));
  }

  @Override public String toString() { return "eos"; }
  // What the driver calls:
  public Map<String, String> options() { return options; }
  public SparkSession session() { return session; }
  public WriteToStream query() { return query; }

  /** Let Spark run this plan, with a function that is called for each batch; false: leave it. */
  public StreamingQuery started(Dataset<Row> plan, BiFunction<Dataset<Row>, Long, Boolean> function)
      throws Exception {
    batch = function;
    planned.complete(plan);
    return started.get(SOON_S, TimeUnit.SECONDS);
  }

  public void refuse(String why) {
    planned.completeExceptionally(new IllegalArgumentException(why));
  }

  /** Spark calls it in the query's thread, before it reads the query's logs. */
  private final class Watch extends StreamingQueryListener {
    @Override
    public void onQueryStarted(QueryStartedEvent event) {
      StreamingQuery running = session.streams().get(event.id());
      if (((StreamingQueryWrapper) running).streamingQuery().sink() == EosSink.this) {
        started.complete(running);
        session.streams().removeListener(this);
      }
    }

    @Override
    public void onQueryProgress(QueryProgressEvent event) {}

    @Override
    public void onQueryTerminated(QueryTerminatedEvent event) {}
  }
}
