"""Programs that run inside the sandbox, in a grader's own environment: none of them imports cm4vllm."""
