// The worker of a training: everything but the page's messages happens here.

import { serve } from "./tracegrad.js";

serve(self);
