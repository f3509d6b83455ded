import java.util.Random;
import org.apache.kafka.common.utils.Utils;

/**
 * Writes murmur2_vectors.json: keys, their hash by Kafka's own Java client, and the partition
 * its producer chooses among 1, 4, 7 and 1000. Run it from this folder (Java 17, Maven):
 *
 * <pre>
 * mvn dependency:copy -Dartifact=org.apache.kafka:kafka-clients:3.9.1 -DoutputDirectory=jars
 * mvn dependency:copy -Dartifact=org.slf4j:slf4j-api:1.7.36 -DoutputDirectory=jars
 * java -cp 'jars/*' Murmur2Vectors.java > murmur2_vectors.json
 * </pre>
 *
 * Lengths 0 to 300 with random bytes (a fixed seed), most of which are not UTF-8.
 */
public class Murmur2Vectors {
    private static final int[] PARTITIONS = {1, 4, 7, 1000};

    public static void main(String[] args) {
        Random random = new Random(20);
        StringBuilder json = new StringBuilder("[\n");
        for (int length = 0; length <= 300; length++) {
            byte[] key = new byte[length];
            random.nextBytes(key);
            json.append(vector(key)).append(length < 300 ? ",\n" : "\n");
        }
        System.out.print(json.append("]\n"));
    }

    private static String vector(byte[] key) {
        StringBuilder hex = new StringBuilder();
        for (byte b : key) {
            hex.append(String.format("%02x", b));
        }
        int hash = Utils.murmur2(key);
        StringBuilder chosen = new StringBuilder();
        for (int count : PARTITIONS) {
            chosen.append(chosen.length() == 0 ? "" : ", ");
            chosen.append(String.format("\"%d\": %d", count, Utils.toPositive(hash) % count));
        }
        return String.format(
            "{\"key\": \"%s\", \"murmur2\": %d, \"partitions\": {%s}}", hex, hash, chosen);
    }
}
