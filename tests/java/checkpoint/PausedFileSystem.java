import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * The local disk as Hadoop's FileContext has it (and Disk, as its FileSystem has it), but that a test can hold it at
 * two places: before a file is created, and between the last look of a rename and the rename itself. Whoever comes to
 * such a step first takes the file "create" or "rename" from the folder "paused.folder" of the configuration: it
 * becomes "held", and as long as that is there the step waits.
 */
public class PausedFileSystem extends DelegateToFileSystem {
  public PausedFileSystem(URI uri, Configuration configuration) throws Exception {
    super(uri, new Disk(), configuration, "file", false);
  }

  public static class Disk extends RawLocalFileSystem {
    private Path folder;

    @Override
    public void initialize(URI uri, Configuration configuration) throws IOException {
      super.initialize(uri, configuration);
      folder = Path.of(configuration.get("paused.folder"));
    }

    @Override
    public FSDataOutputStream create(
        org.apache.hadoop.fs.Path path,
        boolean overwrite,
        int buffer,
        short replication,
        long blockSize,
        Progressable progress)
        throws IOException {
      pause("create");
      return super.create(path, overwrite, buffer, replication, blockSize, progress);
    }

    @Override
    public FSDataOutputStream create(
        org.apache.hadoop.fs.Path path,
        FsPermission permission,
        boolean overwrite,
        int buffer,
        short replication,
        long blockSize,
        Progressable progress)
        throws IOException {
      pause("create");
      return super.create(path, permission, overwrite, buffer, replication, blockSize, progress);
    }

    @Override
    public boolean rename(org.apache.hadoop.fs.Path source, org.apache.hadoop.fs.Path target)
        throws IOException {
      pause("rename");
      return super.rename(source, target);
    }

    private void pause(String step) throws IOException {
      Path held = folder.resolve("held");
      try {
        Files.move(folder.resolve(step), held);
      } catch (NoSuchFileException error) {
        return;
      }
      while (Files.exists(held)) {
        try {
          Thread.sleep(5);
        } catch (InterruptedException error) {
          throw new IOException(error);
        }
      }
    }
  }
}
