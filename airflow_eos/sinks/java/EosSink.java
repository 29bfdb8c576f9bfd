package airflow_eos;

import java.io.File;
import java.net.InetAddress;
import java.security.SecureRandom;
import java.util.HexFormat;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.BiFunction;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.streaming.WriteToStream;
import org.apache.spark.sql.execution.streaming.Sink;
import org.apache.spark.sql.execution.streaming.runtime.StreamingQueryWrapper;
import org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink;
import org.apache.spark.sql.streaming.StreamingQueryListener;
import org.apache.spark.sql.streaming.StreamingQuery;
import py4j.ClientServer;
import scala.runtime.BoxedUnit;

/**
 * The sink of one query: {@code writeStream.format("eos")}.
 *
 * <p>Whatever decides anything is Python's ({@code airflow_eos.sinks.connect}), in a process that
 * this sink starts when Spark analyses the query, before it reads the query's logs. That process is
 * the driver of the protocol: it refuses, recovers, takes the term, and gives back the plan with its
 * tasks in it; then it is called for each batch, in Spark's own thread, as a function given to
 * {@code foreachBatch} is. The methods that are public and not Spark's are Python's.
 */
public final class EosSink implements Sink {
  private static final long STARTED_WITHIN_S = 60;

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

  /** Let Python begin, and return the query with the plan that Python gives. */
  LogicalPlan begin(WriteToStream query) {
    if (this.query != null) {
      return query; // analysed again
    }
    this.query = query;
    Process process = null;
    try {
      process = start();
      Dataset<Row> frame = planned.get();
      session.streams().addListener(new Watch());
      return query.withNewChildInternal(
          ((org.apache.spark.sql.classic.Dataset<Row>) frame).queryExecution().analyzed());
    } catch (ExecutionException refused) {
      throw new IllegalArgumentException(refused.getCause().getMessage());
    } catch (Exception failed) {
      if (process != null) {
        process.destroyForcibly();
      }
      throw new IllegalStateException("eos: its Python driver did not start: " + failed, failed);
    }
  }

  private Process start() throws Exception {
    byte[] secret = new byte[32];
    new SecureRandom().nextBytes(secret);
    String token = HexFormat.of().formatHex(secret);
    ClientServer door =
        new ClientServer.ClientServerBuilder(this)
            .javaPort(0)
            .javaAddress(InetAddress.getLoopbackAddress())
            .authToken(token)
            .autoStartJavaServer(false)
            .build();
    Thread thread = Thread.currentThread();
    ClassLoader before = thread.getContextClassLoader();
    thread.setContextClassLoader(getClass().getClassLoader()); // its threads look classes up there
    try {
      door.startServer();
    } finally {
      thread.setContextClassLoader(before);
    }
    ProcessBuilder python = new ProcessBuilder(python(), "-m", "airflow_eos.sinks.connect");
    Map<String, String> environment = python.environment();
    environment.put("PYSPARK_GATEWAY_PORT", "" + door.getJavaServer().getListeningPort());
    environment.put("PYSPARK_GATEWAY_SECRET", token);
    environment.put("PYSPARK_PIN_THREAD", "true");
    environment.put("PYTHONUNBUFFERED", "1");
    environment.remove("SPARK_CONNECT_MODE_ENABLED");
    environment.remove("SPARK_REMOTE");
    environment.merge(
        "PYTHONPATH", PythonUtils.sparkPythonPath(), (own, spark) -> own + File.pathSeparator + spark);
    Process process = python.inheritIO().redirectInput(ProcessBuilder.Redirect.PIPE).start();
    process.onExit().thenAccept(over -> {
      ended = "eos: the Python driver of this query has ended, with status " + over.exitValue()
          + "; Spark's log has what it said. Start the query again: nothing is lost.";
      planned.completeExceptionally(new IllegalStateException(ended));
      door.shutdown();
    });
    return process;
  }

  /** The Python of the driver, as spark-submit finds it. */
  private String python() {
    var conf = session.sparkContext().conf();
    String told = System.getenv().getOrDefault("PYSPARK_PYTHON", "python3");
    told = System.getenv().getOrDefault("PYSPARK_DRIVER_PYTHON", told);
    return conf.get("spark.pyspark.driver.python", conf.get("spark.pyspark.python", told));
  }

  @Override
  public void addBatch(long id, Dataset<Row> rows) {
    if (batch == null || ended != null) {
      throw new IllegalStateException(ended != null ? ended : EosExtensions.MISSING);
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

  /** End without an error: the batch is left to the next start. Spark stops the query's thread. */
  private void leave() {
    started.thenAcceptAsync(running -> {
      try {
        running.stop();
      } catch (Exception late) {
        throw new IllegalStateException(late);
      }
    });
    try {
      new CompletableFuture<Void>().get(STARTED_WITHIN_S, TimeUnit.SECONDS);
    } catch (InterruptedException stopped) {
      sneak(stopped);
    } catch (Exception never) {
      throw new IllegalStateException("eos: drained, and Spark did not stop the query", never);
    }
  }

  @SuppressWarnings("unchecked")
  private static <E extends Throwable> void sneak(Throwable error) throws E {
    throw (E) error;
  }

  /** For Python: the query as it was written, and how. */
  public Map<String, String> told() {
    Map<String, String> told = new HashMap<>(options);
    told.put("checkpointlocation", query.resolvedCheckpointLocation());
    told.put("queryname", query.name());
    told.put("outputmode", query.outputMode().toString());
    return told;
  }

  /** For Python: the rows of the query. */
  public Dataset<Row> rows() {
    return org.apache.spark.sql.classic.Dataset.ofRows(
        (org.apache.spark.sql.classic.SparkSession) session, query.inputQuery());
  }

  /** For Python: this is the plan of the query, with a function that is called for each batch. */
  public StreamingQuery started(Dataset<Row> plan, BiFunction<Dataset<Row>, Long, Boolean> function)
      throws Exception {
    batch = function;
    planned.complete(plan);
    return started.get(STARTED_WITHIN_S, TimeUnit.SECONDS);
  }

  /** For Python: the query is not to begin. */
  public void refuse(String why) {
    planned.completeExceptionally(new IllegalArgumentException(why));
  }

  /** For Python: the context of the session. */
  public JavaSparkContext context() {
    return JavaSparkContext.fromSparkContext(session.sparkContext());
  }

  /** For Python: the session of the query. */
  public SparkSession session() {
    return session;
  }

  @Override
  public String toString() {
    return "eos";
  }

  /** Spark calls it in the query's thread, before it reads the query's logs. */
  private final class Watch extends StreamingQueryListener {
    @Override
    public void onQueryStarted(QueryStartedEvent event) {
      StreamingQuery running = session.streams().get(event.id());
      if (((StreamingQueryWrapper) running).streamingQuery().sink() == EosSink.this) {
        started.complete(running);
      }
    }

    @Override
    public void onQueryProgress(QueryProgressEvent event) {}

    @Override
    public void onQueryTerminated(QueryTerminatedEvent event) {
      if (started.isDone() && started.join().runId().equals(event.runId())) {
        session.streams().removeListener(this);
      }
    }
  }
}
